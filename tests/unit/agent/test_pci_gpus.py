"""GPUs without NVML: facts of the PCI bus, AMD's driver and NVIDIA's procfs."""

from __future__ import annotations

from pathlib import Path

from hetsched.agent.gpus.probe import describe_cards, probe_cards, read_cards
from hetsched.agent.tree import Tree
from tests.unit.agent.cards import document, pci_device, put

MI210 = {"vendor_id": 4098, "simd_count": 416, "simd_per_cu": 4, "max_engine_clk_fcompute": 1700, "cpu_cores_count": 0}


def kfd_node(root: Path, place: int, **facts: int) -> None:
    text = "".join(f"{name} {value}\n" for name, value in facts.items())
    put(root, {f"sys/class/kfd/kfd/topology/nodes/{place}/properties": text})


def test_amd_driver_reports_its_gpus(tmp_path: Path) -> None:
    # 0x4300 and 0x8300: bus 43 and 83. 65520 MiB are 68702699520 bytes.
    for bus, zone, place in (("43", 0, 2), ("83", 1, 3)):
        pci_device(
            tmp_path, f"0000:{bus}:00.0", "0x038000", "0x1002", numa_node=zone, driver="amdgpu",
            mem_info_vram_total="68702699520", unique_id=f"9f3c{bus}", product_name="AMD INSTINCT MI210",
        )  # fmt: skip
        kfd_node(tmp_path, place, **MI210, location_id=int(bus, 16) << 8, domain=0, drm_render_minor=128 + place)
        put(
            tmp_path,
            {
                f"sys/class/kfd/kfd/topology/nodes/{place}/gpu_id": f"{place}00\n",
                f"sys/class/kfd/kfd/topology/nodes/{place}/io_links/0/properties": "type 2\nnode_to 0\n",
                f"sys/class/kfd/kfd/topology/nodes/{place}/io_links/1/properties": (
                    f"type 11\nnode_to {5 - place}\nmax_bandwidth 100000\n"
                ),
            },
        )
    kfd_node(tmp_path, 0, cpu_cores_count=64, simd_count=0)
    put(tmp_path, {"sys/class/kfd/kfd/proc/4711/vram_300": "1024"})
    tree = Tree(tmp_path)
    cards = probe_cards(tree)
    assert cards is not None
    # 416 SIMDs, 4 to a compute unit of 64 lanes: 104 x 64 = 6656.
    assert [
        (card.index, card.uuid, card.model, card.memory_mib, card.cores, card.clock_mhz, card.zone, card.processes)
        for card in cards
    ] == [
        (0, "GPU-9f3c43", "AMD INSTINCT MI210", 65520, 6656, 1700, 0, 0),
        (1, "GPU-9f3c83", "AMD INSTINCT MI210", 65520, 6656, 1700, 1, 1),
    ]
    assert [[(link.to, link.kind, link.bandwidth_gbs) for link in card.links] for card in cards] == [
        [(1, "nvlink", 100.0)], [(0, "nvlink", 100.0)]
    ]  # fmt: skip
    assert {(card.vendor, card.healthy, card.fp32_tflops, card.bandwidth_gbs) for card in cards} == {
        ("amd", True, 22.6, 1638.0)
    }
    assert tree.problems == []


def test_amd_board_form_factor_keeps_the_gpu_model(tmp_path: Path) -> None:
    pci_device(
        tmp_path, "0000:43:00.0", "0x120000", "0x1002", driver="amdgpu",
        mem_info_vram_total=str(196592 * 2**20), product_name="AMD Instinct MI300X OAM",
    )  # fmt: skip
    (card,) = probe_cards(Tree(tmp_path)) or ()
    assert (card.model, card.memory_mib, card.cores) == ("AMD Instinct MI300X OAM", 196592, 19456)


def test_gpu_without_a_driver_is_listed_with_unknown_facts(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:17:00.0", "0x030200", "0x10de", numa_node=1)
    pci_device(tmp_path, "0000:03:00.0", "0x030000", "0x1a03")  # the display of a server board
    pci_device(tmp_path, "0000:02:00.0", "0x020000", "0x10de")  # no display at all
    tree = Tree(tmp_path)
    (card,) = probe_cards(tree) or ()
    assert (card.index, card.vendor, card.pci_address, card.zone) == (0, "nvidia", "0000:17:00.0", 1)
    assert (card.uuid, card.model, card.memory_mib, card.cores, card.healthy, card.mig_devices) == (None,) * 6
    assert [problem.message for problem in tree.problems] == [
        "card 0: the GPU is present, but it has no kernel driver: memory and other facts are unknown"
    ]


def test_nvidia_procfs_gives_model_and_uuid(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:17:00.0", "0x030200", "0x10de", driver="nvidia")
    information = "Model: \t\t NVIDIA L4\nIRQ:   \t\t 100\nGPU UUID: \t GPU-1\nDevice Minor: \t 3\n"
    put(tmp_path, {"proc/driver/nvidia/gpus/0000:17:00.0/information": information})
    (card,) = probe_cards(Tree(tmp_path)) or ()
    # Memory is the value of the driver, never of the table.
    assert (card.model, card.uuid, card.memory_mib, card.cores) == ("NVIDIA L4", "GPU-1", None, 7424)


def test_gpu_lost_by_its_driver_is_unhealthy(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:06:00.0", "0x030200", "0x10de", driver="nvidia")
    pci_device(tmp_path, "0000:07:00.0", "0x030200", "0x10de", driver="nvidia")
    pci_device(tmp_path, "0000:08:00.0", "0x030200", "0x10de", driver="vfio-pci")
    cards = probe_cards(Tree(tmp_path), document("qx-a100"))
    assert cards is not None
    assert [(card.index, card.pci_address, card.healthy) for card in cards] == [
        (0, "0000:06:00.0", True), (1, "0000:07:00.0", False), (2, "0000:08:00.0", None)
    ]  # fmt: skip


def test_machine_without_a_pci_bus_has_unknown_gpus(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert probe_cards(tree) is None
    assert [problem.code for problem in tree.problems] == ["CardsUnknown"]


def test_empty_pci_bus_has_no_gpus(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    tree = Tree(tmp_path)
    assert probe_cards(tree) == ()
    assert tree.problems == []


def test_odd_entries_are_passed_over(tmp_path: Path) -> None:
    for name in ("../x", "0000:zz:00.0", "0000:01:00.9"):
        put(tmp_path, {f"sys/bus/pci/devices/{name}/class": "0x030200\n"})
    pci_device(tmp_path, "0000:01:00.0", "display", "0x10de")
    pci_device(tmp_path, "0000:02:00.0", "0x030200", "0x1002", driver="amdgpu", mem_info_vram_total="-5")
    kfd_node(tmp_path, 1, simd_count=4, simd_per_cu=0, location_id=0x0200)
    tree = Tree(tmp_path)
    readings = read_cards(tree)
    assert readings is not None
    (card,) = describe_cards(tree, readings)
    assert (card.pci_address, card.memory_mib, card.healthy) == ("0000:02:00.0", None, None)
