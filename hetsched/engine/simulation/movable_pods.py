"""Movable pods: which running pods may be moved, and why the others may not.

A pod may not be moved in these cases: it is a static pod or a DaemonSet pod; it has local data on its node; its owner
forbids eviction; another scheduler would place it; it is being bound, nominated or terminated; or the caller keeps it
in place. A gang moves as a whole or not at all. The other pods form the movable units.
Source: Kubernetes descheduler and cluster-autoscaler, which apply the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hetsched.contracts.api.advice import Stays
from hetsched.contracts.message import Message
from hetsched.contracts.objects.workload import PodSpec, is_ours
from hetsched.engine.cluster.placed_pod import PlacedPod
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.gangs import gang_key
from hetsched.engine.preemption.victims import importance

Unit = tuple[PlacedPod, ...]

MESSAGES = {
    "StaticPod": "it is a static pod",
    "DaemonSet": "it is a pod of a DaemonSet",
    "SafeToEvict": "it is annotated as not safe to evict",
    "LocalVolume": "it uses local storage on its node",
    "Held": "it is reserved capacity of a hold",
    "Foreign": "it is managed by another scheduler",
    "Busy": "it is being bound, is nominated or is terminating",
    "GangMember": "another member of its gang cannot move",
    "NotReady": "its request is invalid, so it could not be scheduled again",
}
_STAYS = {"annotation": "SafeToEvict", "local-volume": "LocalVolume"}


class Units(msgspec.Struct, frozen=True):
    """Movable units and pods that may not be moved.

    `on_row` holds the units by row, in node order, the least important first; `stays` the other pods by reason code.
    """

    on_row: dict[int, list[Unit]]
    stays: dict[str, list[str]]

    @property
    def all(self) -> list[Unit]:
        return [unit for units in self.on_row.values() for unit in units]

    def reasons(self) -> tuple[Stays, ...]:
        """Return the reasons why pods may not be moved, the most frequent first."""
        found = sorted(self.stays.items(), key=lambda item: (-len(item[1]), item[0]))
        return tuple(Stays(code, Message(MESSAGES.get(code, code)), len(keys), min(keys)) for code, keys in found)


def units_of(state: ClusterState, kept: Mapping[str, str]) -> Units:
    """Return the units of a state; `kept` maps pods (keys) that the caller keeps in place to a reason code."""
    stays: dict[str, list[str]] = {}
    on_row: dict[int, list[Unit]] = {}
    for pods in state.on_row:
        for placed in sorted(pods.values(), key=importance, reverse=True):
            code = kept.get(placed.pod.key) or _immovable_reason(placed.pod, state)
            unit: Unit = (placed,)
            key = gang_key(placed.pod)
            if not code and key is not None:
                members = sorted(state.gangs.placed[key])
                unit = tuple(state.placed_pods[member] for member in members)
                if any(
                    kept.get(member) or _immovable_reason(state.placed_pods[member].pod, state) for member in members
                ):
                    code = "GangMember"
                elif members[0] != placed.pod.key:
                    continue  # the unit was added for the gang's first member
            if code:
                stays.setdefault(code, []).append(placed.pod.key)
            else:
                for at in sorted({member.row for member in unit}):
                    on_row.setdefault(at, []).append(unit)
    return Units(on_row, stays)


def _immovable_reason(pod: PodSpec, state: ClusterState) -> str:
    if pod.stays == "hold":
        return "Held"
    if runs_per_node(pod):
        return "DaemonSet" if pod.controller.startswith("DaemonSet/") else "StaticPod"
    if pod.stays:
        return _STAYS.get(pod.stays, "SafeToEvict")
    if pod.key in state.spared.keys:
        return "Busy"
    if state.spared.foreign and not is_ours(pod.scheduler_name):
        return "Foreign"
    return "" if pod.ready else "NotReady"


def runs_per_node(pod: PodSpec) -> bool:
    """Return whether a pod belongs to its node: a static pod of the kubelet or a pod of a DaemonSet.

    A pod that only reserves capacity does not belong to its node: it cannot be preempted either, but a drain has to
    find another node for it.
    """
    is_static = not pod.preemptible and pod.stays != "hold"
    return is_static or pod.controller.partition("/")[0] in ("DaemonSet", "Node")
