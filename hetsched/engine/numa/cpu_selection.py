"""Selection of the exact CPUs of a zone for a pod.

Two hardware threads of one core are slower than two cores: a busy application on both threads slows itself down. A pod
that needs a whole core, however, cannot use a core of which one thread is assigned. The order among the free CPUs of
one zone is
    spread   one thread of each core, cores by (contention, lowest id); second threads only after all cores are in use
    pack     whole free cores by lowest id while they fit; then single threads of the cores with the fewest free
Contention rates the effect of the assigned threads of a core on the new pod. The worst thread determines it: 1 if the
pods are never busy at the same hours, 2 if the profile is unknown, and 2 + h if they are busy at the same time for h
hours a day. Ties are broken by the number of assigned threads. For a new pod that is idle or has an unknown profile,
only the number of assigned threads is compared. An application that is busy at some hours is spread under either order.
Source: cassini (Tencent 2022) for hyper-threads and load profiles; kubelet's CPU manager for the packed order.
Invariants: as many CPUs as requested, each of them free; no application gets two threads of a core while another core
of the zone has a usable free thread under `spread`.
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
_NEXT_TO_QUIET, _NEXT_TO_UNKNOWN = 1, 2


def cores_of(cpus: Iterable[int], siblings: str | None) -> tuple[Core, ...]:
    """Group a zone's CPUs into cores, by lowest id; in `siblings` (like `0,4;1,5`), an unlisted CPU is its own core."""
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
    """Return the hours of the day at which a load profile is busy, or None if it is unknown."""
    if profile == "busy":
        return ALWAYS
    if profile == "idle":
        return NEVER
    if not profile.startswith("peaks="):
        return None
    first, last = (int(hour) for hour in profile.removeprefix("peaks=").split("-"))
    return frozenset((first + i) % 24 for i in range((last - first - 1) % 24 + 1))


def contention(own: Hours | None, held: Iterable[Hours | None]) -> Rank:
    """Rank a core for an application that is busy at `own` hours; `held` are the busy hours of its assigned threads."""
    others = list(held)
    if not own:
        return 0, len(others)
    worst = 0
    for hours in others:
        if hours is None:
            level = _NEXT_TO_UNKNOWN
        else:
            shared = len(own & hours)
            level = _NEXT_TO_UNKNOWN + shared if shared else _NEXT_TO_QUIET
        worst = max(worst, level)
    return worst, len(others)


def pick(count: int, cores: Iterable[Core], free: Set[int], order: str, rank: Callable[[Core], Rank]) -> list[int]:
    """Choose `count` CPUs from `free`, which has at least as many, in the order `spread` or `pack`."""
    remaining = [(core, [cpu for cpu in core if cpu in free]) for core in cores]
    remaining = [(core, threads) for core, threads in remaining if threads]
    chosen: list[int] = []
    if order == "pack":
        for core, threads in remaining:
            if len(threads) == len(core) <= count - len(chosen):
                chosen += threads
                threads.clear()
        for _, threads in sorted(remaining, key=lambda item: (len(item[1]), item[0])):
            chosen += threads[: count - len(chosen)]
        return chosen
    remaining.sort(key=lambda item: (rank(item[0]), item[0]))
    turn = 0
    while len(chosen) < count:
        chosen += [threads[turn] for _, threads in remaining if turn < len(threads)][: count - len(chosen)]
        turn += 1
    return chosen
