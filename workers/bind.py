"""Bind the placed pods of one cluster."""

from __future__ import annotations

from celery import shared_task

from hetsched.placement import dispatch
from hetsched.scheduling import binding_cycle


@shared_task(name=dispatch.BIND)
def run(cluster_id: int) -> int:
    """Advance placed pods; return how many started running (demo cluster) or were bound (live cluster)."""
    return binding_cycle.run(cluster_id)
