"""Which exact CPUs of a zone a pod gets.

Problem: two hardware threads of one core are not two CPUs: a busy application slows itself down on both, and a free
core that is cut in half is gone for whoever wants a whole one.
Rule, among the free CPUs of one zone:
    spread   one thread of each core, cores by (strain, lowest id); second threads only when each core has given one
    pack     whole free cores by lowest id while they fit; then single threads of the cores with the fewest left
Strain is what the threads of a core that others hold mean for the newcomer, the worst of them: 1 beside one that is
never busy when it is, 2 beside one of unknown profile, 2 + hours beside one that is busy for so many hours a day when
it is; ties by how many are held. For a newcomer that is idle, or of unknown profile, only the number held counts.
An application that is busy at some hours is spread under either order.
Source: cassini (Tencent 2022) for hyper-threads and load profiles; kubelet's CPU manager for the packed order.
Invariants: as many CPUs as asked, each of them free; no application gets two threads of a core while another core of
the zone has a free thread that it could have had under `spread`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from functools import lru_cache

from hetsched.contracts.cpuset import parse_cpuset

Core = tuple[int, ...]
Hours = frozenset[int]
Rank = tuple[int, int]

ALWAYS: Hours = frozenset(range(24))
NEVER: Hours = frozenset()
_BESIDE_QUIET, _BESIDE_UNKNOWN = 1, 2


def cores_of(cpus: Iterable[int], siblings: str | None) -> tuple[Core, ...]:
    """Cut a zone's CPUs into cores, by lowest id; `siblings` is `0,4;1,5`, a CPU that it leaves out is a core."""
    present = set(cpus)
    cores: list[Core] = []
    for group in (siblings or "").split(";"):
        threads = parse_cpuset(group) & present
        if threads:
            cores.append(tuple(sorted(threads)))
            present -= threads
    cores.extend((cpu,) for cpu in present)
    return tuple(sorted(cores))


@lru_cache(maxsize=1024)
def busy_hours(profile: str) -> Hours | None:
    """Return the hours of the day at which a load profile is busy, None for an unknown one."""
    if profile == "busy":
        return ALWAYS
    if profile == "idle":
        return NEVER
    if not profile.startswith("peaks="):
        return None
    first, last = (int(hour) for hour in profile.removeprefix("peaks=").split("-"))
    return frozenset((first + i) % 24 for i in range((last - first - 1) % 24 + 1))


def strain(own: Hours | None, held: Iterable[Hours | None]) -> Rank:
    """Rank a core for an application that is busy at `own` hours; `held` are those of the threads already held."""
    others = list(held)
    if not own:
        return 0, len(others)
    worst = 0
    for hours in others:
        if hours is None:
            level = _BESIDE_UNKNOWN
        else:
            shared = len(own & hours)
            level = _BESIDE_UNKNOWN + shared if shared else _BESIDE_QUIET
        worst = max(worst, level)
    return worst, len(others)


def pick(count: int, cores: Iterable[Core], free: Set[int], order: str, rank: Callable[[Core], Rank]) -> list[int]:
    """Choose `count` of the `free` CPUs, which must be as many, in the order `spread` or `pack`."""
    left = [(core, [cpu for cpu in core if cpu in free]) for core in cores]
    left = [(core, threads) for core, threads in left if threads]
    chosen: list[int] = []
    if order == "pack":
        for core, threads in left:
            if len(threads) == len(core) <= count - len(chosen):
                chosen += threads
                threads.clear()
        for _, threads in sorted(left, key=lambda item: (len(item[1]), item[0])):
            chosen += threads[: count - len(chosen)]
        return chosen
    left.sort(key=lambda item: (rank(item[0]), item[0]))
    turn = 0
    while len(chosen) < count:
        chosen += [threads[turn] for _, threads in left if turn < len(threads)][: count - len(chosen)]
        turn += 1
    return chosen
