"""Result of the diagnosis of an unplaced pod; `explain.diagnosis` computes it."""

from __future__ import annotations

import msgspec

from hetsched.contracts.api.decision import NearestFit, Reason, Unplaced, Verdict
from hetsched.contracts.message import Message
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.waits import WaitsFor


class FunnelStep(msgspec.Struct, frozen=True, rename="camel"):
    """One filter of the diagnosis, with the number of nodes that were feasible before and after it."""

    plugin: str
    before: int
    after: int


class Diagnosis(msgspec.Struct, frozen=True):
    """Complete diagnosis of one unplaced pod.

    `resolvable` are the rows of the nodes that preemption could make feasible. `waits_for` are the events that may make
    a node feasible; it is empty if no event can. `candidates` are, for each reason, the first nodes that would fit the
    pod if they were empty.
    """

    verdict: Verdict
    reasons: tuple[Reason, ...]
    funnel: tuple[FunnelStep, ...]
    summary: Message
    resolvable: tuple[int, ...] = ()
    waits_for: tuple[WaitsFor, ...] = ()
    candidates: tuple[tuple[str, ...], ...] = ()

    @property
    def recorded(self) -> tuple[Reason, ...]:
        """Return the reasons with their candidate nodes, as decision records store them."""
        if not any(self.candidates):
            return self.reasons
        pairs = zip(self.reasons, self.candidates, strict=True)
        return tuple(msgspec.structs.replace(reason, candidates=names) for reason, names in pairs)

    def unplaced(self, pod: PodSpec, nearest_fit: tuple[NearestFit, ...] = ()) -> Unplaced:
        return Unplaced(pod.key, self.verdict, self.reasons, nearest_fit)
