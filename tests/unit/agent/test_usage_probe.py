"""Use of CPU, memory, network and disks from increasing counters, and the use of zones by other programs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from hetsched.agent.probe_usage import UsageMeter, offline_capacity_millis, stated_capacities
from hetsched.agent.tree import Tree
from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.agent_report import MachineUsage, MachineZone
from tests.unit.agent.trees import put

NETWORK, DISK = "hetsched.io/network-mbps", "hetsched.io/disk-mbps"
GIB = 2**30


class Machine:
    """A tree with counters, and a meter with a clock, both set by a test."""

    def __init__(self, root: Path, stated: dict[str, int] | None = None) -> None:
        self.root = root
        self.at = 100.0
        self.problems: list[str] = []
        now = datetime(2026, 11, 20, 10, tzinfo=UTC)
        self.meter = UsageMeter(stated, clock=lambda: self.at, now=lambda: now)
        self.memory()
        self.network(eth0=(0, 0))
        self.disks(sda=(0, 0))
        for path in ("class/net/eth0", "class/net/eth1", "block/sda", "block/nvme0n1"):
            put(root, f"sys/{path}/device/vendor", "0x1")
        self.speed("eth0", 25000)

    def cpus(self, *cpus: tuple[int, int, int], first: int = 0) -> None:
        """Set busy, idle and stolen ticks of CPUs; until they are set again, they idle."""
        self.last, self.first, self.set = cpus, first, True
        lines = [f"cpu{first + i} {busy} 0 0 {idle} 0 0 0 {stolen} 0 0" for i, (busy, idle, stolen) in enumerate(cpus)]
        put(self.root, "proc/stat", "\n".join(["cpu  0 0 0 0 0 0 0 0 0 0", *lines, "intr 12 0 0", "ctxt 5"]))

    def memory(self, total: int = 8 * GIB, available: int = 6 * GIB) -> None:
        put(self.root, "proc/meminfo", f"MemTotal: {total // 1024} kB\nMemAvailable:  {available // 1024} kB")

    def network(self, **counters: tuple[int, int]) -> None:
        lines = [f"{name:>6}: {rx} 1 0 0 0 0 0 0 {tx} 1 0 0 0 0 0 0" for name, (rx, tx) in counters.items()]
        head = ["Inter-|   Receive       |  Transmit", " face |bytes    packets |bytes    packets"]
        put(self.root, "proc/net/dev", "\n".join([*head, *lines]))

    def disks(self, **sectors: tuple[int, int]) -> None:
        lines = [f"   8  0 {name} 9 9 {read} 9 9 9 {written} 9 0 9 9" for name, (read, written) in sectors.items()]
        put(self.root, "proc/diskstats", "\n".join(lines))

    def speed(self, name: str, mbps: int | None, state: str = "up") -> None:
        put(self.root, f"sys/class/net/{name}/speed", mbps)
        put(self.root, f"sys/class/net/{name}/operstate", state)

    def measure(self, seconds: float = 10.0, *, still: bool = False) -> MachineUsage | None:
        if not (self.set or still):
            self.cpus(*((busy, idle + 1000, stolen) for busy, idle, stolen in self.last), first=self.first)
        self.set = False
        self.at += seconds
        tree = Tree(self.root)
        found = self.meter.measure(tree)
        self.problems = [problem.code for problem in tree.problems]
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    found = Machine(tmp_path)
    found.cpus((0, 0, 0), (0, 0, 0))
    found.measure()
    return found


def amounts(usage: MachineUsage | None) -> dict[str, int]:
    assert usage is not None
    return usage.amounts


def test_single_sample_gives_no_usage(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.cpus((0, 0, 0))
    assert machine.measure() is None
    assert machine.problems == ["UsageNotMeasured"]


def test_use_is_reported_in_the_contracts_units(machine: Machine) -> None:
    # 10 s: CPU 0 is busy for 750 of 1000 ticks, CPU 1 for 250: 1000 millicores. 8 - 6 = 2 GiB. 500 MB received and 125
    # MB sent: 400 and 100 Mbit/s, of which the larger counts. 20000 + 60000 sectors of 512 B: 4.096 MB/s.
    machine.cpus((750, 250, 0), (250, 750, 0))
    machine.network(eth0=(500_000_000, 125_000_000))
    machine.disks(sda=(20_000, 60_000))
    assert machine.measure() == MachineUsage(
        {"cpu": 1000, "memory": 2 * GIB, NETWORK: 400, DISK: 4},
        {"cpu": 2000, "memory": 8 * GIB, NETWORK: 25000},
        10.0,
        "2026-11-20T10:00:00Z",
    )
    assert machine.problems == ["CapacityUnknown"]  # the capacity of a disk is unknown


def test_declared_capacities_are_reported(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {NETWORK: 10_000, DISK: 500})
    machine.cpus((0, 0, 0))
    machine.measure()
    machine.cpus((0, 10, 0))
    usage = machine.measure()
    assert usage is not None
    assert usage.capacity == {"cpu": 1000, "memory": 8 * GIB, NETWORK: 10_000, DISK: 500}
    assert machine.problems == []


def test_only_interfaces_with_a_device_count(machine: Machine) -> None:
    machine.network(eth0=(0, 0), veth1=(0, 0), lo=(0, 0), bond0=(0, 0))
    machine.disks(sda=(0, 0), sda1=(0, 0), loop0=(0, 0))
    machine.measure()
    machine.network(eth0=(1_250_000, 0), veth1=(9**9, 0), lo=(9**9, 0), bond0=(9**9, 0))
    machine.disks(sda=(0, 39_063), sda1=(0, 9**6), **{"dm-0": (0, 9**6)})
    # 1.25 MB in 10 s are 1 Mbit/s; 39063 sectors are 20.0 MB, so 2 MB/s
    assert amounts(machine.measure()) == {"memory": 2 * GIB, "cpu": 0, NETWORK: 1, DISK: 2}


def test_stolen_and_waiting_time_is_not_used(machine: Machine) -> None:
    machine.cpus((200, 300, 500), (0, 1000, 0))
    assert amounts(machine.measure())["cpu"] == 200


@pytest.mark.parametrize(
    ("before", "after", "mbps"),
    [
        (2**32 - 1_000_000, 250_000, 1),  # 32 bits full: 1.25 MB
        (10**12, 5000, None),  # 64 bits do not overflow: the driver was loaded again
        (2**31 - 1, 0, None),
    ],
)
def test_counters_that_decreased_wrapped_or_restarted(
    machine: Machine, before: int, after: int, mbps: int | None
) -> None:
    machine.network(eth0=(before, 0))
    machine.measure()
    machine.network(eth0=(after, 0))
    assert amounts(machine.measure()).get(NETWORK) == mbps
    assert ("UsageNotMeasured" in machine.problems) == (mbps is None)
    machine.network(eth0=(after + 1_250_000, 0))
    assert amounts(machine.measure())[NETWORK] == 1


def test_cpu_that_appears_or_restarts_is_measured_from_then_on(machine: Machine) -> None:
    machine.cpus((500, 500, 0), (500, 500, 0), (70_000, 5, 0))
    assert "cpu" not in amounts(machine.measure())
    machine.cpus((1000, 1000, 0), (1000, 1000, 0), (70_500, 505, 0))
    assert amounts(machine.measure())["cpu"] == 1500
    machine.cpus((1500, 1500, 0), (0, 10, 0), (71_000, 1005, 0))
    assert "cpu" not in amounts(machine.measure())


def test_offline_cpu_is_missing_from_capacity(machine: Machine) -> None:
    machine.cpus((250, 750, 0))
    usage = machine.measure()
    assert usage is not None
    assert (usage.amounts["cpu"], usage.capacity["cpu"]) == (250, 1000)


def test_waiting_time_may_step_back(machine: Machine) -> None:
    machine.cpus((0, 1000, 0), (0, 1000, 0))
    machine.measure()
    machine.cpus((100, 999, 0), (0, 1100, 0))
    assert amounts(machine.measure())["cpu"] == 1000


def test_new_interface_counts_from_its_first_sample(machine: Machine) -> None:
    machine.network(eth0=(0, 0), eth1=(10**10, 0))
    assert amounts(machine.measure())[NETWORK] == 0
    machine.network(eth0=(0, 0), eth1=(10**10 + 1_250_000, 0))
    assert amounts(machine.measure())[NETWORK] == 1


def test_memory_without_mem_available_uses_free_buffers_and_cached(machine: Machine) -> None:
    put(machine.root, "proc/meminfo", "MemTotal: 1000 kB\nMemFree: 200 kB\nBuffers: 50 kB\nCached: 150 kB")
    assert amounts(machine.measure())["memory"] == 600 * 1024


@pytest.mark.parametrize("file", ["proc/stat", "proc/meminfo", "proc/net/dev", "proc/diskstats"])
@pytest.mark.parametrize(
    "content", [None, "", "cpu0 a b c d", "x" * 100, "\0\1", "cpu0 1 2 3\ncpuX 1 1 1 1\nMemTotal:\n:"]
)
def test_unreadable_counter_is_not_measured(machine: Machine, file: str, content: str | None) -> None:
    (machine.root / file).unlink()
    put(machine.root, file, content)
    resource = {"stat": "cpu", "meminfo": "memory", "dev": NETWORK, "diskstats": DISK}[file.rpartition("/")[2]]
    usage = machine.measure(still=file == "proc/stat")
    assert resource not in amounts(usage)
    assert "UsageNotMeasured" in machine.problems


# -- capacity ----------------------------------------------------------------------------------------------------------


def capacity(machine: Machine) -> int | None:
    usage = machine.measure()
    assert usage is not None
    return usage.capacity.get(NETWORK)


def test_links_that_are_up_add_up(machine: Machine) -> None:
    machine.network(eth0=(0, 0), eth1=(0, 0))
    machine.speed("eth1", 10_000)
    assert capacity(machine) == 35_000


def test_link_that_is_down_adds_no_capacity(machine: Machine) -> None:
    machine.network(eth0=(0, 0), eth1=(0, 0))
    machine.speed("eth1", -1, "down")
    assert capacity(machine) == 25_000


@pytest.mark.parametrize("speed", [-1, 0, None])
def test_link_without_counters_makes_the_sum_unknown(machine: Machine, speed: int | None) -> None:
    machine.network(eth0=(0, 0), eth1=(0, 0))
    machine.speed("eth1", speed)
    assert capacity(machine) is None
    assert machine.problems.count("CapacityUnknown") == 2


def test_bonded_links_count_in_their_bond(machine: Machine) -> None:
    machine.network(eth0=(0, 0), eth1=(0, 0), bond0=(0, 0))
    machine.speed("eth1", 25_000)
    put(machine.root, "sys/class/net/bond0/bonding/mode", "active-backup 1")
    machine.speed("bond0", 25_000)
    for name in ("eth0", "eth1"):
        (machine.root / f"sys/class/net/{name}/master").symlink_to("../bond0")
    assert capacity(machine) == 25_000


# -- use by other programs
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "steal", "left"),
    [(24, 0.65, 8400), (24, 0.1, 21600), (24, 0.0, 24000), (24, 1.0, 0), (8, 1.5, 0), (8, -1.0, 8000)],
)
def test_remaining_capacity_of_a_zone(cpus: int, steal: float, left: int) -> None:
    # 24 CPUs of which 35 % remain are 8400m, 90 % are 21600m
    assert offline_capacity_millis(cpus, steal) == left


ZONES = (MachineZone(0, "0-1"), MachineZone(1, "2-3"), MachineZone(2, ""), MachineZone(3, "4"))


def test_steal_is_reported_by_zone(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.cpus(*[(0, 0, 0)] * 4)
    machine.measure()
    # zone 0: 300 + 100 of 2000 ticks stolen, zone 1 none; CPU 4 is unknown
    machine.cpus((200, 500, 300), (0, 900, 100), (500, 500, 0), (0, 1000, 0))
    machine.measure()
    found = machine.meter.with_steal(ZONES)
    assert [(zone.steal_ratio, zone.offline_capacity_millis) for zone in found] == [
        (0.2, 1600), (0.0, 2000), (None, None), (None, None),
    ]  # fmt: skip
    assert machine.meter.changed_steal(ZONES) == found
    assert machine.meter.changed_steal(found) is None


def test_steal_is_smoothed_with_a_half_life_of_a_minute(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.cpus((0, 0, 0), first=4)
    machine.measure()
    machine.cpus((0, 500, 500), first=4)
    machine.measure()
    machine.cpus((0, 1500, 500), first=4)
    machine.measure(60.0)
    # half of 0.5 is forgotten, half of 0.0 is learnt
    assert machine.meter.with_steal(ZONES)[3].steal_ratio == 0.25


def test_steal_is_reported_only_after_a_clear_change(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.cpus((0, 0, 0), first=4)
    machine.measure()
    machine.cpus((0, 900, 100), first=4)
    machine.measure()
    known = MachineZone(3, "4", steal_ratio=0.06)
    assert machine.meter.changed_steal((known,)) is None  # 0.10 - 0.06 is less than 0.05
    assert machine.meter.changed_steal((MachineZone(3, "4", steal_ratio=0.16),)) == (
        MachineZone(3, "4", steal_ratio=0.1, offline_capacity_millis=900),
    )


def test_copied_tree_has_no_measured_use(machine: Machine) -> None:
    assert machine.measure(still=True) is None
    assert machine.problems == ["UsageNotMeasured"]


def test_capacities_are_stated_in_the_environment() -> None:
    given = {"HETSCHED_AGENT_NETWORK_MBPS": "25000", "HETSCHED_AGENT_DISK_MBPS": ""}
    assert stated_capacities(given) == {NETWORK: 25000}


@pytest.mark.parametrize("text", ["0", "-1", "fast", "1.5", "9" * 30])
def test_invalid_disk_capacity_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match="HETSCHED_AGENT_DISK_MBPS"):
        stated_capacities({"HETSCHED_AGENT_DISK_MBPS": text})
