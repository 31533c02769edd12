"""The `schedule` queue: decide for one cluster."""

from __future__ import annotations

from celery import shared_task

from hetsched.placement import dispatch
from hetsched.scheduling import scheduling_loop


@shared_task(name=dispatch.SCHEDULE)
def run(cluster_id: int) -> int:
    """Decide for a cluster until no pod is due; return how many decisions were recorded."""
    return scheduling_loop.run(cluster_id)
