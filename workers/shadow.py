"""Review another scheduler's bindings in a cluster in shadow mode.

A run has a short time limit and enqueues the next run if pods remain, so binding and reporting tasks are not delayed.
Concurrent runs are harmless, because each row is reviewed only once.
"""

from __future__ import annotations

from celery import shared_task

from hetsched.placement import dispatch
from hetsched.placement.actions.shadow_decisions import compare_pods, has_pending_comparisons


@shared_task(name=dispatch.SHADOW)
def run(cluster_id: int) -> int:
    """Review pending bindings; return the number of reviewed bindings."""
    looked_at = compare_pods(cluster_id)
    if looked_at and has_pending_comparisons(cluster_id):
        dispatch.wake(cluster_id, dispatch.SHADOW)
    return looked_at
