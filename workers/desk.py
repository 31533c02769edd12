"""What the policy desk does by itself: looks whether golden placements still hold, and ends previews that were lost.

Rule: the beat asks for a look every so often; a look claims what it does by the rows themselves, so a doubled one does
no harm. Golden placements are judged again only where nodes or active versions changed.
"""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from hetsched.placement.actions.previewing import forget_previews, settle_lost
from hetsched.policies.goldens import look_again


@shared_task(name="workers.desk.tick")
def tick() -> dict[str, int]:
    """Look at everything that is due; return how many golden placements are in which state."""
    now = timezone.now()
    settle_lost(now)
    forget_previews(now)
    return look_again(now)
