"""Remaining capacity of one node: how many more copies of a pod fit, and the limiting constraint.

Copies are placed one after another, by the policy's own filters and Reserve plugins, until a copy is rejected; then all
copies are undone. The rejection determines the limiting constraint: a resource, the GPUs or their memory, the CPUs or
the memory of a zone, or else the rule that rejects the copy.
Invariant: the state is unchanged afterwards.
"""

from __future__ import annotations

import msgspec

from hetsched.contracts.api.decision import Reason
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.units import CPU, MEMORY
from hetsched.engine.explain.decision_matrix import node_outcome
from hetsched.engine.framework.cycle import Scheduler

CARDS, CARD_MEMORY, ZONE_CPU, ZONE_MEMORY = "cards", "card-memory", "zone-cpu", "zone-memory"
_ZONES = {CPU: ZONE_CPU, MEMORY: ZONE_MEMORY}


class NodeCapacity(msgspec.Struct, frozen=True):
    """Number of copies of a pod that fit on a node; if `exact` is false, a lower bound.

    `binding` is the limiting resource; it is empty if a rule rejects the next copy. `reason` states why the next copy
    is rejected.
    """

    copies: int
    exact: bool
    binding: str = ""
    reason: Reason | None = None


def node_capacity(scheduler: Scheduler, pod: PodSpec, row: int, most: int) -> NodeCapacity:
    """Count the copies of a pod that fit on a row, up to `most`."""
    placed: list[str] = []
    try:
        while len(placed) < most:
            copy = msgspec.structs.replace(pod, name=f"{pod.name}-{len(placed)}")
            outcome = scheduler.place_on(copy, row)
            if outcome.node is None:
                reason = _reason(scheduler, copy, row)
                return NodeCapacity(len(placed), True, _binding(scheduler, copy, row, reason), reason)
            placed.append(copy.key)
    finally:
        for key in reversed(placed):
            scheduler.state.forget(key)
    return NodeCapacity(len(placed), False)


def _reason(scheduler: Scheduler, pod: PodSpec, row: int) -> Reason | None:
    answer = node_outcome(scheduler, pod, row)
    if not answer.feasible:
        return answer.refused
    short = scheduler.reserve_refusal(scheduler.state.compile(pod), row)
    return None if short is None else Reason(short.code, "reserve", 1, short.message, short.missing, short.field)


def _binding(scheduler: Scheduler, pod: PodSpec, row: int, reason: Reason | None) -> str:
    if reason is None:
        return ""
    if reason.code == "InsufficientResource":
        return reason.missing[0]
    if reason.code == "GpuInsufficient":
        return _of_cards(scheduler, pod, row)
    if reason.code.startswith(("Zone", "Kubelet")) and reason.missing:
        return _ZONES.get(reason.missing[0], CARDS)
    return ""


def _of_cards(scheduler: Scheduler, pod: PodSpec, row: int) -> str:
    """Return the limiting resource: GPU memory if enough GPUs have the requested share free, else GPUs."""
    demand, field = pod.shape.gpu, scheduler.state.columns.field
    if demand is None or demand.milli >= 1000:
        return CARDS
    roomy = int((field("card_milli_free")[:, row] >= demand.milli).sum())
    return CARD_MEMORY if roomy >= demand.count else CARDS
