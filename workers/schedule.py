"""Task of the `schedule` queue: make decisions for one cluster."""

from __future__ import annotations

from celery import shared_task

from hetsched.placement import dispatch
from hetsched.scheduling import worker_host


@shared_task(name=dispatch.SCHEDULE)
def run(cluster_id: int) -> int:
    """Make decisions for a cluster until no pod is due; return how many were recorded."""
    return worker_host.run(cluster_id)
