"""What evictions of one run come to: who left a node where it ran before, and who is only not placed after all.

Rule: a driver tells of every placement of its run in the end. A pod that the run placed and that had to leave again is
not placed, with the reason `Preempted`; it is not tried again, so every pod is decided once and a run always ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hetsched.contracts.allocation import EMPTY
from hetsched.contracts.decision import Evicted
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Outcome
from hetsched.engine.framework.status import Refusal

PREEMPTED = "Preempted"


def evictions(outcome: Outcome, earlier: Mapping[str, Outcome], state: ClusterState) -> Iterator[Evicted]:
    """Yield the pods that left for `outcome` and ran before; take those back that the run itself had placed.

    `earlier` are the outcomes of the run so far by pod key.
    """
    if outcome.eviction is None:
        return
    budgets = dict(zip(outcome.eviction.victims, outcome.eviction.budgets, strict=False))
    for booking in outcome.evicted:
        key = booking.pod.key
        own = earlier.get(key)
        if own is None or own.node is None:
            yield Evicted(key, state.columns.names[booking.row], booking.pod.priority, budgets.get(key) or None)
        else:
            own.node, own.row, own.allocation, own.evicted = None, -1, EMPTY, ()
            own.refusal = ("preemption", Refusal(PREEMPTED, f"preempted by {outcome.pod.key}"))
