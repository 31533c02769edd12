"""The cluster state of a past decision, for a golden placement created from it."""

from __future__ import annotations

import msgspec

from hetsched.placement.models import Decision
from hetsched.policies.golden_states import RecordedCluster

from .decision_matrix import scheduler_before


def recorded_cluster(decision: Decision) -> RecordedCluster:
    """Return the cluster as of a decision, without the pod of the decision.

    Raises: InputError `DecisionExpired` if the inventory changed since, or if reservations of that time were deleted.
    """
    state = scheduler_before(decision).state
    names = state.columns.names
    running = tuple(
        msgspec.structs.replace(placed.pod, node_name=names[placed.row], allocation=placed.allocation)
        for _, placed in sorted(state.placed_pods.items())
    )
    reports = tuple(state.report_now(row) for row in range(len(state.reports)))
    content = msgspec.structs.replace(
        decision.cluster.definitions, nodes=reports, running=running, pending=(), policies=()
    )
    return RecordedCluster(decision.pk, content)
