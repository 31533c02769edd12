"""Carry plans of moves on that an operator confirmed.

Rule: `go_on` does what can be done now and ends; the sweep wakes it again while a plan is under way. Of two at once
the one that comes second finds the state changed and looks again.
"""

from __future__ import annotations

from celery import shared_task

from hetsched.inventory.connections import in_shadow
from hetsched.placement import dispatch
from hetsched.placement.actions.rebalances import go_on


@shared_task(name=dispatch.REBALANCE)
def run(cluster_id: int) -> int:
    """Go on with a cluster's plan; return how many moves were begun or came to an end."""
    return 0 if in_shadow(cluster_id) else go_on(cluster_id)
