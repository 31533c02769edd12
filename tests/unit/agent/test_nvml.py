"""NVML with a fake driver: missing functions, lost GPUs, instances, links, and a hang."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from hetsched.agent.gpus.nvml import NvmlClient, bindings
from hetsched.agent.gpus.probe import describe_cards, read_cards
from hetsched.agent.tree import Tree
from hetsched.contracts.messages.agent_report import MachineCard, MachineProblem

NOT_SUPPORTED, DRIVER_NOT_LOADED, GPU_IS_LOST, NOT_FOUND, TIMEOUT = 3, 9, 15, 6, 10
MIB = 2**20


class Failure(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


def gpu(number: int, **facts: Any) -> dict[str, Any]:
    """Return one A100 as newer bindings do; a number instead of a value is an error."""
    return {
        "GetName": "NVIDIA A100-SXM4-40GB",
        "GetUUID": f"GPU-{number}",
        "GetPciInfo": SimpleNamespace(busId=f"00000000:0{number}:00.0"),
        "GetMinorNumber": number,
        "GetMemoryInfo": SimpleNamespace(total=40960 * MIB),
        "GetNumGpuCores": 6912,
        "GetMaxClockInfo": 1410,
        "GetMigMode": [0, 0],
        "GetRemappedRows": (0, 0, 0, 0),
        "GetComputeRunningProcesses": [SimpleNamespace(pid=7), SimpleNamespace(pid=9)],
        "GetGraphicsRunningProcesses": [SimpleNamespace(pid=9)],
        **facts,
    }


class Driver:
    """NVML of some GPUs; values without an entry are not supported."""

    NVMLError = Failure

    def __init__(self, *cards: dict[str, Any] | int, init: int = 0) -> None:
        self.cards, self.init = cards, init

    def nvmlInit(self) -> None:
        if self.init:
            raise Failure(self.init)

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        card = self.cards[index]
        if isinstance(card, int):
            raise Failure(card)
        return card

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDevice"):
            raise AttributeError(name)
        question = name.removeprefix("nvmlDevice")

        def answer(handle: dict[str, Any], *more: Any) -> Any:
            said = handle.get(question, NOT_SUPPORTED)
            if callable(said):
                said = said(*more)
            if said in (NOT_SUPPORTED, GPU_IS_LOST, NOT_FOUND) and question not in ("GetMinorNumber",):
                raise Failure(said)
            return said

        return answer


def cards_of(driver: Driver, root: Path) -> tuple[tuple[MachineCard, ...], list[str]]:
    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    tree = Tree(root)
    readings = read_cards(tree, client=NvmlClient(driver))
    assert readings is not None
    cards = describe_cards(tree, readings)
    return cards, [problem.message for problem in tree.problems if problem.code != "CardZoneUnknown"]


def test_gpu_is_reported(tmp_path: Path) -> None:
    (card,), problems = cards_of(Driver(gpu(1)), tmp_path)
    assert (card.uuid, card.model, card.memory_mib, card.pci_address) == (
        "GPU-1", "NVIDIA A100-SXM4-40GB", 40960, "0000:01:00.0"
    )  # fmt: skip
    assert (card.cores, card.clock_mhz, card.fp32_tflops, card.healthy, card.processes) == (6912, 1410, 19.5, True, 2)
    assert (card.mig_devices, problems) == ((), [])


def test_instances_are_named_by_the_driver(tmp_path: Path) -> None:
    split = {
        "GetMigMode": [1, 1],
        "GetMaxMigDeviceCount": 7,
        "GetMigDeviceHandleByIndex": lambda place: (
            gpu(0, GetUUID=f"MIG-{place}", GetName="NVIDIA A100-SXM4-40GB MIG 3g.20gb",
                GetMemoryInfo=SimpleNamespace(total=20096 * MIB))
            if place in (0, 3) else NOT_FOUND
        ),
    }  # fmt: skip
    (card,), _ = cards_of(Driver(gpu(1, **split)), tmp_path)
    assert card.mig_devices is not None
    assert [(mig_device.uuid, mig_device.profile, mig_device.memory_mib) for mig_device in card.mig_devices] == [
        ("MIG-0", "3g.20gb", 20096), ("MIG-3", "3g.20gb", 20096)
    ]  # fmt: skip


def test_lost_gpu_is_reported_as_unhealthy(tmp_path: Path) -> None:
    lost = dict.fromkeys(gpu(2), GPU_IS_LOST)
    cards, problems = cards_of(Driver(gpu(1), GPU_IS_LOST, lost), tmp_path)
    assert [card.healthy for card in cards] == [True, False, False]
    assert [card.memory_mib for card in cards] == [40960, None, None]
    assert problems == ["card 1: the driver lost the GPU", "card 2: the driver lost the GPU"]


def test_rows_that_cannot_be_remapped_make_a_card_ill(tmp_path: Path) -> None:
    cards, problems = cards_of(
        Driver(gpu(1, GetRemappedRows=(0, 9, 0, 1)), gpu(2, GetRemappedRows=(0, 1, 1, 0))), tmp_path
    )
    assert [card.healthy for card in cards] == [False, True]
    assert problems == [
        "card 0: memory rows could not be remapped",
        "card 1: memory rows will be remapped at the next reset",
    ]


def test_old_driver_reports_fewer_fields(tmp_path: Path) -> None:
    old = gpu(1, GetName=b"Tesla T4", GetUUID=b"GPU-1", GetMemoryInfo=SimpleNamespace(total=15360 * MIB))
    for question in ("GetNumGpuCores", "GetMigMode", "GetRemappedRows", "GetComputeRunningProcesses"):
        del old[question]
    del old["GetGraphicsRunningProcesses"]
    (card,), _ = cards_of(Driver(old), tmp_path)
    assert (card.model, card.uuid, card.cores, card.mig_devices, card.processes) == (
        "Tesla T4",
        "GPU-1",
        2560,
        (),
        None,
    )


def test_direct_links_share_the_cards_bandwidth(tmp_path: Path) -> None:
    def linked(number: int, to: dict[int, int]) -> dict[str, Any]:
        ends = [other for other, links in to.items() for _ in range(links)]
        return gpu(
            number,
            GetNvLinkState=lambda link: int(link < len(ends)),
            GetNvLinkRemoteDeviceType=0,
            GetNvLinkRemotePciInfo=lambda link: SimpleNamespace(busId=f"00000000:0{ends[link]}:00.0"),
            GetTopologyCommonAncestor=lambda other: 50,
        )

    # 600 GB/s both ways over 12 links are 25 a link one way: 8 links carry 200, 4 carry 100.
    cards, _ = cards_of(Driver(linked(1, {2: 8, 3: 4}), linked(2, {1: 8}), linked(3, {1: 4})), tmp_path)
    assert [(link.to, link.kind, link.bandwidth_gbs) for link in cards[0].links] == [
        (1, "nvlink", 200.0), (2, "nvlink", 100.0)
    ]  # fmt: skip
    assert [(link.to, link.kind) for link in cards[1].links] == [(0, "nvlink"), (2, "system")]


def test_gpus_on_a_switch_are_linked_to_all_others(tmp_path: Path) -> None:
    switched = {"GetNvLinkState": 1, "GetNvLinkRemoteDeviceType": 2}
    cards, _ = cards_of(Driver(gpu(1, **switched), gpu(2, **switched), gpu(3)), tmp_path)
    # 600 GB/s both ways are 300 in one direction.
    assert [[(link.to, link.bandwidth_gbs) for link in card.links] for card in cards] == [
        [(1, 300.0)],
        [(0, 300.0)],
        [],
    ]


def test_gpu_stays_unhealthy_after_an_xid_error() -> None:
    cards = [gpu(1), gpu(2)]
    events: list[tuple[int, int]] = []

    class EventDriver(Driver):
        watched: ClassVar[list[Any]] = []

        def nvmlEventSetCreate(self) -> object:
            return self.watched

        def nvmlDeviceRegisterEvents(self, handle: Any, kind: int, events: list[Any]) -> None:
            assert kind == 8
            events.append(handle)

        def nvmlEventSetWait_v2(self, watched: list[Any], _milliseconds: int) -> Any:
            if not events:
                raise Failure(TIMEOUT)
            place, xid = events.pop(0)
            return SimpleNamespace(device=watched[place], eventType=8, eventData=xid)

    client = NvmlClient(EventDriver(*cards))

    def troubles() -> list[list[str]]:
        return [card.troubles for card in client.read([]) or ()]

    assert troubles() == [[], []]
    events += [(0, 31), (1, 79)]  # a page fault of a program; fallen off the bus
    assert troubles() == [[], ["the GPU reported Xid 79"]]
    assert troubles() == [[], ["the GPU reported Xid 79"]]


def test_no_driver_is_no_problem() -> None:
    problems: list[MachineProblem] = []
    assert NvmlClient(Driver(init=DRIVER_NOT_LOADED)).read(problems) is None
    assert problems == []


def test_failing_driver_is_reported() -> None:
    problems: list[MachineProblem] = []
    assert NvmlClient(Driver(init=18)).read(problems) is None
    assert [problem.code for problem in problems] == ["NvmlFailed"]


def test_hanging_driver_is_not_called_until_it_recovers() -> None:
    free, asked = threading.Event(), []

    class Hanging(Driver):
        def nvmlDeviceGetCount(self) -> int:
            asked.append(1)
            free.wait(30)
            return 0

    client = NvmlClient(Hanging(), patience_seconds=0.05)
    problems: list[MachineProblem] = []
    try:
        assert client.read(problems) is None
        assert client.read(problems) is None
    finally:
        free.set()
    assert [problem.code for problem in problems] == ["NvmlHangs", "NvmlHangs"]
    assert len(asked) == 1


def test_nvml_bindings_load_without_a_driver() -> None:
    problems: list[MachineProblem] = []
    found = NvmlClient(bindings()).read(problems)
    if found is not None:
        pytest.skip("this machine has a driver")
    assert problems == []
