"""Evictions of one run: running pods that are evicted, and pods of the run that lose their placement.

The caller reports every placement at the end of the run. A pod that the run placed and later evicted is reported as not
placed, with the reason `Preempted`; it is not scheduled again, so the run decides each pod once and always ends.
The evictions for a gang are undone if the gang cannot start, so they are final only after its last member.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hetsched.contracts.api.decision import PREEMPTION_SOURCE, Evicted
from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import EMPTY
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.status import Refusal

PREEMPTED = "Preempted"


def evictions(outcome: Outcome, earlier: Mapping[str, Outcome], state: ClusterState) -> Iterator[Evicted]:
    """Yield the pods evicted for `outcome` that were running before the run; undo the outcomes of its other victims.

    The other victims are pods placed by the run itself. `earlier` are the outcomes of the run by pod key, at least the
    previous ones.
    """
    if outcome.eviction is None:
        return
    budgets = dict(zip(outcome.eviction.victims, outcome.eviction.budgets, strict=False))
    for placed in outcome.evicted:
        key = placed.pod.key
        own = earlier.get(key)
        if own is None or own.node is None:
            yield Evicted(key, state.columns.names[placed.row], placed.pod.priority, budgets.get(key) or None)
        else:
            own.node, own.row, own.allocation, own.evicted = None, -1, EMPTY, ()
            own.refusal = (PREEMPTION_SOURCE, Refusal(PREEMPTED, Message("preempted by {pods}", pods=outcome.pod.key)))
