"""Bind what was placed.

Rule: on a demo cluster binding always succeeds at once; an offline cluster's placements exist only here and stay as
they are. The steps are those of a real binding, each its own short transaction, so a worker that dies between them
leaves pods that the next run takes further.
"""

from __future__ import annotations

from celery import shared_task

from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.placement import dispatch
from hetsched.placement.actions import Conflict, begin_binding, confirm, start
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod

PODS_PER_STEP = 500
STEPS = ((State.PLACED, begin_binding), (State.BINDING, confirm), (State.BOUND, start))


@shared_task(name=dispatch.BIND)
def run(cluster_id: int) -> int:
    """Bind and start what is placed on a demo cluster; return how many pods run now that did not before."""
    if not Cluster.objects.filter(pk=cluster_id, kind=ClusterKind.DEMO).exists():
        return 0
    started = 0
    for state, step in STEPS:
        while pods := _pods(cluster_id, state):
            try:
                moved = len(step(cluster_id, pods))
            except Conflict:
                break  # somebody else moves them on; the sweep looks again
            if state is State.BOUND:
                started += moved
    return started


def _pods(cluster_id: int, state: State) -> list[int]:
    rows = Pod.objects.filter(cluster_id=cluster_id, state=state.value).order_by("id")
    return list(rows.values_list("id", flat=True)[:PODS_PER_STEP])


def unbound(cluster_id: int) -> bool:
    """Tell whether a demo cluster has pods on their way to running."""
    return Pod.objects.filter(cluster_id=cluster_id, state__in=[state.value for state, _ in STEPS]).exists()
