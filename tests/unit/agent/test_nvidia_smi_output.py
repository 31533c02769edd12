"""Every published document of `nvidia-smi -q -x` and the report of it.

The numbers are copied from the documents by hand; cores, TFLOPS and GB/s are those of the accelerator table.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hetsched.agent.gpus.probe import probe_cards
from hetsched.agent.tree import Tree
from hetsched.contracts.messages.agent_report import MachineCard
from tests.unit.agent.cards import document, pci_device


def read(name: str, root: Path) -> tuple[tuple[MachineCard, ...], list[str]]:
    tree = Tree(root)
    cards = probe_cards(tree, document(name))
    assert cards is not None
    return cards, [problem.code for problem in tree.problems]


SINGLE = {
    # document: model, MiB shown, MHz at most, PCI address, cores, TFLOPS, GB/s
    "qx-a100": ("NVIDIA A100-SXM4-40GB", 40960, 1410, "0000:06:00.0", 6912, 19.5, 1555.0),
    "qx-t4": ("Tesla T4", 15360, 1590, "0000:00:1e.0", 2560, 8.1, 320.0),
    "telegraf-rtx-3090-v12": ("NVIDIA GeForce RTX 3090", 24576, 2100, "0000:00:10.0", 10496, 35.6, 936.0),
}


@pytest.mark.parametrize("name", SINGLE)
def test_single_gpu(name: str, tmp_path: Path) -> None:
    (card,), _ = read(name, tmp_path)
    assert (
        card.model, card.memory_mib, card.clock_mhz, card.pci_address, card.cores, card.fp32_tflops, card.bandwidth_gbs
    ) == SINGLE[name]  # fmt: skip
    assert (card.index, card.uuid) == (0, "GPU-00000000-0000-0000-0000-000000000000")
    assert (card.healthy, card.mig_devices, card.links, card.processes) == (True, (), (), 0)


def test_four_instances_of_a_split_card(tmp_path: Path) -> None:
    (card,), codes = read("telegraf-a100-sxm4-v12", tmp_path)
    assert (card.model, card.memory_mib) == ("NVIDIA A100-SXM4-80GB", 81920)
    assert card.mig_devices is not None
    # 14 multiprocessors and 19968 MiB: one compute slice with two memory slices of an 80 GB card.
    assert [(mig_device.profile, mig_device.memory_mib, mig_device.uuid) for mig_device in card.mig_devices] == [
        ("1g.20gb", 19968, None)
    ] * 4
    # The document counts four attached GPUs: the described one has device node 1.
    assert card.index == 1
    assert "CardsNotDescribed" in codes


H100 = ["53", "64", "75", "86", "97", "a8", "b9", "ca"]
B200 = ["8f", "90", "96", "97", "c4", "c5", "cb", "cc"]


@pytest.mark.parametrize(
    ("name", "model", "memory_mib", "clock_mhz", "cores", "buses", "gbs"),
    [
        # Half of 900 and of 1800 GB/s, which are both directions together.
        ("qx-h100", "NVIDIA H100 80GB HBM3", 81559, 1980, 16896, H100, 450.0),
        ("qx-b200", "NVIDIA B200", 183359, 1965, 18944, B200, 900.0),
        # The table does not contain it, so values missing in the document stay unknown.
        ("qx-gb200", "NVIDIA GB200", 189471, 2062, None, ["29", "3f", "9c", "b2"], None),
    ],
)
def test_cards_that_a_switch_joins(
    name: str, model: str, memory_mib: int, clock_mhz: int, cores: int | None, buses: list[str], gbs: float | None,
    tmp_path: Path,
) -> None:  # fmt: skip
    cards, codes = read(name, tmp_path)
    assert [card.pci_address for card in cards] == [f"0000:{bus}:00.0" for bus in buses]
    assert [card.index for card in cards] == list(range(len(buses)))
    assert {(card.model, card.memory_mib, card.clock_mhz, card.cores) for card in cards} == {
        (model, memory_mib, clock_mhz, cores)
    }
    assert [card.uuid for card in cards] == [f"GPU-{n:08d}-0000-0000-0000-{n:012d}" for n in range(len(buses))]
    for card in cards:
        assert card.healthy is True
        assert card.mig_devices == ()
        assert [(link.to, link.kind, link.bandwidth_gbs) for link in card.links] == [
            (other, "nvlink", gbs) for other in range(len(buses)) if other != card.index
        ]
    assert ("CardNotInTable" in codes) == (cores is None)


def test_zone_is_that_of_the_pci_device(tmp_path: Path) -> None:
    for bus in H100:
        pci_device(tmp_path, f"0000:{bus}:00.0", "0x030200", "0x10de", numa_node=0 if bus < "97" else 1)
    cards, codes = read("qx-h100", tmp_path)
    assert [card.zone for card in cards] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert codes == []


def test_unreported_zone_is_unknown_with_its_reason(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:06:00.0", "0x030200", "0x10de", numa_node=-1)
    (card,), codes = read("qx-a100", tmp_path)
    assert card.zone is None
    assert codes == ["CardZoneUnknown"]


def test_gpu_without_a_zone_belongs_to_the_only_zone(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:06:00.0", "0x030200", "0x10de", numa_node=-1)
    (tmp_path / "sys/devices/system/node").mkdir(parents=True)
    (tmp_path / "sys/devices/system/node/online").write_text("0\n")
    (card,), codes = read("qx-a100", tmp_path)
    assert card.zone == 0
    assert codes == []
