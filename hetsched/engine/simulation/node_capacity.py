"""How many more copies of a pod one node takes, and what runs out first there.

Rule: copies are booked one after another, by the policy's own filters and Reserve steps, until one is refused; then
they are taken back. What refuses the next one names what binds: a resource, the memory of cards or the cards, the CPUs
or the memory of a zone, or, where it is none of these, the rule that refuses.
Invariant: the state is left as it was.
"""

from __future__ import annotations

import msgspec

from hetsched.contracts.decision import Reason
from hetsched.contracts.units import CPU, MEMORY
from hetsched.contracts.workload import PodSpec
from hetsched.engine.explain.diagnosis import of_node
from hetsched.engine.framework.cycle import Scheduler

CARDS, CARD_MEMORY, ZONE_CPU, ZONE_MEMORY = "cards", "card-memory", "zone-cpu", "zone-memory"
_ZONES = {CPU: ZONE_CPU, MEMORY: ZONE_MEMORY}


class NodeRoom(msgspec.Struct, frozen=True):
    """How many copies fit, at least so many where not `exact`; `binding` names what runs out, empty where a rule does.

    `reason` is why the next one is refused.
    """

    copies: int
    exact: bool
    binding: str = ""
    reason: Reason | None = None


def room_on(scheduler: Scheduler, pod: PodSpec, row: int, most: int) -> NodeRoom:
    """Count the copies of a pod that a row takes, up to `most`."""
    booked: list[str] = []
    try:
        while len(booked) < most:
            copy = msgspec.structs.replace(pod, name=f"{pod.name}-{len(booked)}")
            outcome = scheduler.place_on(copy, row)
            if outcome.node is None:
                reason = _reason(scheduler, copy, row)
                return NodeRoom(len(booked), True, _binding(scheduler, copy, row, reason), reason)
            booked.append(copy.key)
    finally:
        for key in reversed(booked):
            scheduler.state.forget(key)
    return NodeRoom(len(booked), False)


def _reason(scheduler: Scheduler, pod: PodSpec, row: int) -> Reason | None:
    told = of_node(scheduler, pod, row)
    if not told.feasible:
        return told.refused
    short = scheduler.refusal_to_reserve(scheduler.state.compile(pod), row)
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
    """Say whether cards or their memory are short: memory, where enough cards have the share that is asked."""
    demand, field = pod.shape.gpu, scheduler.state.columns.field
    if demand is None or demand.milli >= 1000:
        return CARDS
    roomy = int((field("card_milli_free")[:, row] >= demand.milli).sum())
    return CARD_MEMORY if roomy >= demand.count else CARDS
