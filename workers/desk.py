"""What the policy desk does by itself: figures of clusters, plans, golden placements, previews that were lost.

Rule: the beat asks for a look every so often; a look claims what it does by the rows themselves, so a doubled one does
no harm. Figures are taken before plans go by them. Golden placements are judged again only where nodes or active
versions changed. One part that fails keeps no other from its turn.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
from celery import shared_task
from django.utils import timezone

from hetsched.placement.actions.previews import forget_previews, settle_lost
from hetsched.placement.queries.cluster_metrics import take_measures
from hetsched.policies.goldens import look_again
from hetsched.policies.plans import look_at_plans

log = structlog.get_logger(__name__)


@shared_task(name="workers.desk.tick")
def tick() -> None:
    """Look at everything that is due."""
    now = timezone.now()
    parts: tuple[Callable[..., object], ...] = (settle_lost, forget_previews, take_measures, look_at_plans, look_again)
    for part in parts:
        try:
            part(now)
        except Exception:
            log.exception("a part of the policy desk failed", part=part.__name__)
