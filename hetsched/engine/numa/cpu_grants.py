"""Which CPUs a pod gets on a row, and who is beside it there.

Rule: `pinned` CPUs come from those of a zone that nobody holds and that are not reserved, in the order of `cpus`; the
`shared` pool of a zone is all of it but reserved CPUs and those that belong to one pod alone (`immovable` pods keep
theirs to themselves only against other pins, everybody may run there).
Source: cassini (Tencent 2022); gocrane `pkg/ensurance/cm/cpumanager/policy.go`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .cpu_selection import Core, Rank, busy_hours, pick, strain

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState


def pinned(state: ClusterState, row: int, position: int, count: int, order: str, profile: str) -> list[int] | None:
    """Choose CPUs of one zone for a pod of a load profile, None where they are not named."""
    free = state.zones.free_cpus(row, position)
    if free is None:
        return None
    held = state.zones.held.get(row, {})
    own = busy_hours(profile)

    def rank(core: Core) -> Rank:
        beside = [
            busy_hours(state.bookings[holder].pod.shape.load_profile) if holder else None
            for cpu in core
            if cpu not in free
            for holder in held.get(cpu, ("",))
        ]
        return strain(own, beside)

    return pick(count, state.zones.nodes[row].cores[position], free, "spread" if own else order, rank)


def shared(state: ClusterState, row: int, position: int) -> frozenset[int] | None:
    """Return the CPUs of one zone that are shared, None where they are not named."""
    usable = state.zones.nodes[row].usable[position]
    if usable is None:
        return None
    held = state.zones.held.get(row, {})
    own = {
        cpu
        for cpu, holders in held.items()
        if any(state.bookings[holder].allocation.cpu_policy != "immovable" for holder in holders)
    }
    return usable - own


def pairings(state: ClusterState, key: str) -> Iterator[str]:
    """Yield, for each CPU that a booked pod holds, who else runs on its core, as sentences."""
    booking = state.bookings[key]
    facts = state.zones.nodes.get(booking.row)
    held = state.zones.held.get(booking.row, {})
    own = busy_hours(booking.pod.shape.load_profile)
    mine = sorted(cpu for cpu, holders in held.items() if key in holders)
    cores = {cpu: core for zone in (facts.cores if facts else ()) for core in zone for cpu in core}
    for cpu in mine:
        for sibling in cores.get(cpu, ()):
            if sibling == cpu:
                continue
            if key in held.get(sibling, ()) and cpu < sibling:
                yield f"CPUs {cpu} and {sibling} are threads of one core, both its own"
            for holder in held.get(sibling, ()):
                if holder != key:
                    other = busy_hours(state.bookings[holder].pod.shape.load_profile)
                    yield f"CPU {cpu} shares a core with CPU {sibling} of {holder}, {_together(own, other)}"


def _together(own: frozenset[int] | None, other: frozenset[int] | None) -> str:
    if other is not None and not other:
        return "which is idle"
    if own is None or other is None:
        return "whose load is unknown" if other is None else f"which is busy {len(other)} hours a day"
    shared_hours = len(own & other)
    return f"busy at the same time {shared_hours} hours a day" if shared_hours else "busy at other hours"
