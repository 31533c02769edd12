"""CPU selection for a pod on a node, and the other pods on the cores of its CPUs.

`pinned` chooses from the unassigned, unreserved CPUs of a zone, in the order of `cpu_selection`. The `shared` pool of a
zone contains all CPUs except reserved CPUs and the exclusive CPUs of a pod. It includes the CPUs of `immovable` pods:
no other pod can be pinned to these, but every pod may run on them.
Source: cassini (Tencent 2022); gocrane `pkg/ensurance/cm/cpumanager/policy.go`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hetsched.contracts.message import BY_KUBELET, Message

from .cpu_selection import Core, Rank, busy_hours, contention, pick

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState


def pinned(state: ClusterState, row: int, position: int, count: int, order: str, profile: str) -> list[int] | None:
    """Return `count` free CPUs of a zone for a pod with a load profile, or None if the zone does not name its CPUs."""
    free = state.zones.free_cpus(row, position)
    if free is None:
        return None
    held = state.zones.held.get(row, {})
    own = busy_hours(profile)

    def rank(core: Core) -> Rank:
        neighbours = [
            busy_hours(state.placed_pods[holder].pod.shape.load_profile) if holder in state.placed_pods else None
            for cpu in core
            if cpu not in free
            for holder in held.get(cpu, ("",))
        ]
        return contention(own, neighbours)

    return pick(count, state.zones.nodes[row].cores[position], free, "spread" if own else order, rank)


def shared(state: ClusterState, row: int, position: int) -> frozenset[int] | None:
    """Return the CPUs in the shared pool of one zone, or None if the zone does not name its CPUs."""
    usable = state.zones.nodes[row].usable[position]
    if usable is None:
        return None
    held = state.zones.held.get(row, {})
    own = {
        cpu
        for cpu, holders in held.items()
        if any(
            holder not in state.placed_pods or state.placed_pods[holder].allocation.cpu_policy != "immovable"
            for holder in holders
        )
    }
    return usable - own


def pairings(state: ClusterState, key: str) -> Iterator[Message]:
    """Yield a message for each CPU that is allocated to a placed pod, with the other pods on the same core."""
    placed = state.placed_pods[key]
    facts = state.zones.nodes.get(placed.row)
    held = state.zones.held.get(placed.row, {})
    own = busy_hours(placed.pod.shape.load_profile)
    mine = sorted(cpu for cpu, holders in held.items() if key in holders)
    cores = {cpu: core for zone in (facts.cores if facts else ()) for core in zone for cpu in core}
    for cpu in mine:
        for sibling in cores.get(cpu, ()):
            if sibling == cpu:
                continue
            if key in held.get(sibling, ()) and cpu < sibling:
                yield Message(
                    "CPUs {cpu} and {sibling}, both assigned to this pod, are threads of one core",
                    cpu=cpu,
                    sibling=sibling,
                )
            for holder in held.get(sibling, ()):
                if holder != key:
                    neighbour = state.placed_pods.get(holder)
                    other = None if neighbour is None else busy_hours(neighbour.pod.shape.load_profile)
                    yield Message(_SHARES, cpu=cpu, sibling=sibling, pods=_holder(holder), load=_together(own, other))


_SHARES = "CPU {cpu} shares a core with CPU {sibling} of {pods}, {load}"


def _holder(key: str) -> str:
    return Message("kubelet:{pod}", pod=key.removeprefix(BY_KUBELET)) if key.startswith(BY_KUBELET) else key


def _together(own: frozenset[int] | None, other: frozenset[int] | None) -> Message:
    if other is not None and not other:
        return Message("which is idle")
    if other is None:
        return Message("whose load is unknown")
    if own is None:
        return Message("which is busy {n} hours a day", n=len(other))
    shared = len(own & other)
    return (
        Message("and both are busy at the same time for {n} hours a day", n=shared)
        if shared
        else Message("which is busy at other hours")
    )
