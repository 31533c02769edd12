"""Judge what another scheduler bound, for a cluster that is followed in its shadow.

Rule: a run judges for a moment and asks for another one while pods wait, so that it never keeps a worker from binding
and telling; nothing waits for it. Two runs at once do no harm: a row is judged once.
"""

from __future__ import annotations

from celery import shared_task

from hetsched.placement import dispatch
from hetsched.placement.actions.shadow_decisions import due_shadows, judge


@shared_task(name=dispatch.SHADOW)
def run(cluster_id: int) -> int:
    """Judge pods that wait for it; return how many were looked at."""
    looked_at = judge(cluster_id)
    if looked_at and due_shadows(cluster_id):
        dispatch.wake(cluster_id, dispatch.SHADOW)
    return looked_at
