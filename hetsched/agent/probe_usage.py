"""Usage of a machine and CPU steal of its zones, measured between two samples.

The kernel has only cumulative counters. A counter starts at 0 again when its driver is reloaded or its CPU goes online,
and wraps on 32-bit kernels. A transfer through stacked devices is counted on each of them. Formulas for the time
between two samples:
    cpu        1000 x time not idle, not waiting, not stolen / all time, summed over CPUs, in millicores
    memory     total - available, in bytes, at the later sample
    network    the larger of received and sent, in Mbit/s, over interfaces with a hardware device: links are duplex
    disk       read + written, in MB/s, over whole disks with a hardware device

A counter that decreased has wrapped if it was in the upper half of 32 bits, otherwise it was reset, and its resource is
not measured in this window. The network capacity is the speed of the links that are up. The disk capacity cannot be
read, so the operator configures it.

    steal      stolen / all time of the CPUs of a zone, smoothed with a half-life
    offline capacity = 1000 x CPUs of the zone x (1 - steal)

Source: Linux Documentation/filesystems/proc.rst, Documentation/admin-guide/iostats.rst, ABI/testing/sysfs-class-net;
cassini (Tencent 2022) for the discount; its formula is not published and was reconstructed.
Invariants: no amount is negative; a resource without an entry in `amounts` was not measured, and a problem states the
reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.agent_report import MachineProblem, MachineUsage, MachineZone
from hetsched.contracts.times import rfc3339
from hetsched.contracts.units import CPU, DISK_MBPS, MEMORY, NETWORK_MBPS

from .tree import Tree

STEAL_HALF_LIFE_SECONDS = 60.0
STEAL_CHANGE = 0.05
LEAST_WINDOW_SECONDS = 0.2
_VARIABLES = {NETWORK_MBPS: "HETSCHED_AGENT_NETWORK_MBPS", DISK_MBPS: "HETSCHED_AGENT_DISK_MBPS"}
_SPEED_SECONDS = 60.0  # cache lifetime of link speeds
_MOST_STAT_BYTES = 4 * 1024 * 1024  # the file also holds the interrupt counters, which are long on large machines
_SECTOR_BYTES = 512
_HALF, _WHOLE = 2**31, 2**32

Counters = dict[str, tuple[int, ...]]


class CpuTicks(NamedTuple):
    """Time of one CPU by activity, in kernel ticks."""

    busy: int
    waiting: int
    stolen: int

    @property
    def total(self) -> int:
        return self.busy + self.waiting + self.stolen


class UsageSample(NamedTuple):
    """Counters at one time of the monotonic clock; unreadable counters are None."""

    at: float
    cpus: dict[int, CpuTicks] | None
    memory: tuple[int, int] | None  # total and available bytes
    network: Counters | None  # received and sent bytes by interface
    disks: Counters | None  # sectors read and written by disk


class UsageMeter:
    """Meter of the usage between two calls of `measure`; `stated` has the configured network and disk capacities."""

    def __init__(
        self,
        stated: Mapping[str, int] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._stated = stated or {}
        self._clock = clock
        self._now = now
        self._before: UsageSample | None = None
        self._physical: dict[str, bool] = {}
        self._speed: tuple[float, int | None] | None = None
        self._steal: dict[int, float] = {}
        self.last: MachineUsage | None = None

    def measure(self, tree: Tree) -> MachineUsage | None:
        """Return the usage since the last call, or None on the first call; each call starts a new window."""
        before, after = self._before, self._sample(tree)
        if before is None or after.at - before.at < LEAST_WINDOW_SECONDS:
            self._before = before or after
            _problem(tree, "UsageNotMeasured", "a measurement needs two samples, but only one exists")
            return None
        self._before = after
        if before.cpus and before.cpus == after.cpus:
            _problem(tree, "UsageNotMeasured", "the CPU counters do not change; /proc may be a copy")
            return None
        window = after.at - before.at
        self._smooth(before, after, window)
        amounts = {
            CPU: _cpu_millis(before.cpus, after.cpus),
            MEMORY: None if after.memory is None else max(after.memory[0] - after.memory[1], 0),
            NETWORK_MBPS: _rate(before.network, after.network, 8 / 1e6 / window, max),
            DISK_MBPS: _rate(before.disks, after.disks, _SECTOR_BYTES / 1e6 / window, sum),
        }
        capacity = {
            CPU: None if after.cpus is None else 1000 * len(after.cpus),
            MEMORY: None if after.memory is None else after.memory[0],
            NETWORK_MBPS: self._stated.get(NETWORK_MBPS) or self._network_mbps(tree, after),
            DISK_MBPS: self._stated.get(DISK_MBPS),
        }
        for resource, amount in amounts.items():
            if amount is None:
                _problem(tree, "UsageNotMeasured", f"{resource}: the counter is missing or was reset")
        for resource, amount in capacity.items():
            if amount is None and amounts[resource] is not None:
                _problem(tree, "CapacityUnknown", f"{resource}: the capacity is unknown")
        self.last = MachineUsage(
            amounts={resource: amount for resource, amount in amounts.items() if amount is not None},
            capacity={resource: amount for resource, amount in capacity.items() if amount is not None},
            window_seconds=round(window, 3),
            observed_at=rfc3339(self._now()),
        )
        return self.last

    def with_steal(self, zones: Iterable[MachineZone]) -> tuple[MachineZone, ...]:
        """Return the zones, with the CPU steal set in those zones in which it was measured for every CPU."""
        found: list[MachineZone] = []
        for zone in zones:
            cpus = parse_cpuset(zone.cpus)
            if cpus and cpus <= self._steal.keys():
                ratio = round(sum(self._steal[cpu] for cpu in cpus) / len(cpus), 4)
                zone = msgspec.structs.replace(
                    zone, steal_ratio=ratio, offline_capacity_millis=offline_capacity_millis(len(cpus), ratio)
                )
            found.append(zone)
        return tuple(found)

    def changed_steal(self, reported: tuple[MachineZone, ...]) -> tuple[MachineZone, ...] | None:
        """Return the zones if a zone's steal differs by at least `STEAL_CHANGE` from the reported value, else None."""
        now = self.with_steal(reported)
        for before, after in zip(reported, now, strict=True):
            known, ratio = before.steal_ratio, after.steal_ratio
            if ratio is not None and (known is None or abs(ratio - known) >= STEAL_CHANGE):
                return now
        return None

    def wait(self) -> None:
        """Wait until the window is long enough for a measurement, at most a fifth of a second."""
        if self._before is not None:
            time.sleep(max(self._before.at + LEAST_WINDOW_SECONDS - self._clock(), 0.0))

    # -- samples -----------------------------------------------------------------------------------------------------

    def _sample(self, tree: Tree) -> UsageSample:
        network = _table(tree, "/proc/1/net/dev" if tree.exists("/proc/1/net/dev") else "/proc/net/dev")
        disks = _table(tree, "/proc/diskstats")
        if len(self._physical) > 10_000:  # limits the cache, because pods constantly create interfaces with new names
            self._physical.clear()
        return UsageSample(
            at=self._clock(),
            cpus=_ticks(tree),
            memory=_memory(tree),
            network=_counters(network, lambda name: self._has_device(tree, f"/sys/class/net/{name}"), 1, 9),
            disks=_counters(disks, lambda name: self._has_device(tree, f"/sys/block/{name.replace('/', '!')}"), 5, 9),
        )

    def _has_device(self, tree: Tree, folder: str) -> bool:
        """Return whether an interface or a disk has a hardware device; the result is cached by name."""
        known = self._physical.get(folder)
        if known is None:
            known = self._physical[folder] = tree.exists(f"{folder}/device")
        return known

    def _network_mbps(self, tree: Tree, sample: UsageSample) -> int | None:
        """Return the total speed in Mbit/s of the links that are up; None if none is up or one reports no speed."""
        if self._speed is not None and sample.at - self._speed[0] < _SPEED_SECONDS:
            return self._speed[1]
        speeds: dict[str, int] = {}
        known = True
        for name in sample.network or ():
            folder = f"/sys/class/net/{name}"
            if tree.text(f"{folder}/operstate", 64) == "down":
                continue
            # For bonded links, the speed of the bond is used: it is lower than the sum of the links if one is a
            # standby.
            bond = tree.link_name(f"{folder}/master")
            whole = bond if bond and tree.exists(f"/sys/class/net/{bond}/bonding") else name
            speed = tree.number(f"/sys/class/net/{whole}/speed")
            known = known and speed is not None and speed > 0
            speeds[whole] = speed or 0
        total = sum(speeds.values()) if speeds and known else None
        self._speed = (sample.at, total)
        return total

    def _smooth(self, before: UsageSample, after: UsageSample, window: float) -> None:
        keep = 0.5 ** (window / STEAL_HALF_LIFE_SECONDS)
        steal: dict[int, float] = {}
        for cpu, spent in _ticks_between(before.cpus or {}, after.cpus or {}).items():
            if spent is not None and spent.total:
                ratio = spent.stolen / spent.total
                steal[cpu] = keep * self._steal.get(cpu, ratio) + (1 - keep) * ratio
            elif cpu in self._steal:
                steal[cpu] = self._steal[cpu]
        self._steal = steal


def stated_capacities(environment: Mapping[str, str]) -> dict[str, int]:
    """Return the operator's capacities of network (Mbit/s) and disks (MB/s). Raises: InputError `CapacityInvalid`."""
    found: dict[str, int] = {}
    for resource, variable in _VARIABLES.items():
        text = environment.get(variable, "").strip()
        if text and not (_is_count(text) and 0 < int(text) <= 10**9):
            raise InputError("CapacityInvalid", f"{text[:40]!r} is not a positive whole number", place=variable)
        if text:
            found[resource] = int(text)
    return found


def offline_capacity_millis(cpus: int, steal_ratio: float) -> int:
    """Return the capacity in millicores that remains after CPU steal in a zone with this number of CPUs."""
    return round(1000 * cpus * (1 - min(max(steal_ratio, 0.0), 1.0)))


# -- reading -----------------------------------------------------------------------------------------------------------


def _ticks(tree: Tree) -> dict[int, CpuTicks] | None:
    """Read the time of each CPU; guest time is already included in user time."""
    found: dict[int, CpuTicks] = {}
    for line in (tree.text("/proc/stat", _MOST_STAT_BYTES) or "").split("\n"):
        if not line.startswith("cpu"):
            break
        fields = line.split()
        number = fields[0][3:]
        values = [int(field) for field in fields[1:9] if _is_count(field)]
        if _is_count(number) and len(values) >= 4 and len(values) == len(fields[1:9]):
            user, nice, system, idle, wait, irq, soft, stolen = (values + [0] * 4)[:8]
            found[int(number)] = CpuTicks(user + nice + system + irq + soft, idle + wait, stolen)
    return found or None


def _memory(tree: Tree) -> tuple[int, int] | None:
    """Read total and available memory; if an old kernel does not report available memory, it is computed."""
    amounts: dict[str, int] = {}
    for line in (tree.text("/proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and _is_count(words[0]) and len(words[0]) <= 15:
            amounts[name] = int(words[0]) * 1024
    total = amounts.get("MemTotal")
    available = amounts.get("MemAvailable")
    if available is None and "MemFree" in amounts:
        available = sum(amounts.get(name, 0) for name in ("MemFree", "Buffers", "Cached"))
    return None if total is None or available is None else (total, available)


def _table(tree: Tree, path: str) -> dict[str, list[str]] | None:
    """Split the lines of a file into fields, by device name: the text before the colon, or a disk's third field."""
    text = tree.text(path, _MOST_STAT_BYTES)
    if text is None:
        return None
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        if colon and "|" not in line:
            found[name.strip()] = ["", *rest.split()]
        elif not colon and len(words := line.split()) >= 14:
            # Sectors read and written are at indexes 5 and 9.
            found[words[2]] = words
    return found


def _counters(
    table: dict[str, list[str]] | None, physical: Callable[[str], bool], first: int, second: int
) -> Counters | None:
    if table is None:
        return None
    found: Counters = {}
    for name, fields in table.items():
        if len(fields) > second and _is_count(fields[first]) and _is_count(fields[second]) and physical(name):
            found[name] = (int(fields[first]), int(fields[second]))
    return found


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


# -- between two samples -----------------------------------------------------------------------------------------------


def _ticks_between(before: dict[int, CpuTicks], after: dict[int, CpuTicks]) -> dict[int, CpuTicks | None]:
    """Return each CPU's time between the samples, or None if a CPU was absent before or its counters were reset."""
    found: dict[int, CpuTicks | None] = {}
    for cpu, now in after.items():
        then = before.get(cpu)
        if then is None or now.busy < then.busy or now.stolen < then.stolen:
            found[cpu] = None
        else:
            # The kernel's iowait counter can decrease slightly.
            found[cpu] = CpuTicks(now.busy - then.busy, max(now.waiting - then.waiting, 0), now.stolen - then.stolen)
    return found


def _cpu_millis(before: dict[int, CpuTicks] | None, after: dict[int, CpuTicks] | None) -> int | None:
    if before is None or after is None:
        return None
    spent = list(_ticks_between(before, after).values())
    if any(one is None for one in spent):
        return None
    return round(sum(1000 * one.busy / one.total for one in spent if one is not None and one.total))


def _rate(before: Counters | None, after: Counters | None, factor: float, of: Callable[[list[int]], int]) -> int | None:
    """Sum the increases of both counters over all devices, combine the two sums with `of`, and multiply by `factor`.

    A new device is included from the next window on. Returns None if a counter was reset.
    """
    if not before or not after:
        return None
    deltas = [0, 0]
    for name, now in after.items():
        for side, (then, value) in enumerate(zip(before.get(name, now), now, strict=True)):
            grown = _increase(then, value)
            if grown is None:
                return None
            deltas[side] += grown
    return round(of(deltas) * factor)


def _increase(before: int, after: int) -> int | None:
    """Return the increase of a counter, or None if it was reset."""
    if after >= before:
        return after - before
    if _HALF <= before < _WHOLE and after < _HALF:
        return after + _WHOLE - before
    return None


def _problem(tree: Tree, code: str, message: str) -> None:
    tree.problems.append(MachineProblem(code, message))
