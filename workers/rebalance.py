"""Continue confirmed rebalance plans.

`advance_plan` executes the steps that are possible now. The sweep wakes the task again while a plan is in progress. If
two runs are concurrent, the second run finds that the state changed and reads it again.
"""

from __future__ import annotations

from celery import shared_task

from hetsched.inventory.connections import is_in_shadow
from hetsched.placement import dispatch
from hetsched.placement.actions.rebalances import advance_plan


@shared_task(name=dispatch.REBALANCE)
def run(cluster_id: int) -> int:
    """Continue a cluster's plan; return how many moves started or ended."""
    return 0 if is_in_shadow(cluster_id) else advance_plan(cluster_id)
