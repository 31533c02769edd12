"""Periodic tasks of the policy workflow: cluster metrics, rollout plans, golden placements, and lost previews.

The beat starts a run at intervals; a run claims its work through rows, so a duplicate run is harmless. Metrics are
recorded before the plans that use them are evaluated. Golden placements are checked again only if nodes or active
versions have changed.
A failing part does not block the others.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import structlog
from celery import shared_task
from django.utils import timezone

from hetsched.placement.actions.previews import fail_lost_previews, prune_previews, wake_waiting_preview
from hetsched.placement.queries.cluster_metrics import record_measures
from hetsched.policies.goldens import recheck_goldens
from hetsched.policies.plans import evaluate_plans

log = structlog.get_logger(__name__)


@shared_task(name="workers.policy_workflow.tick")
def tick() -> None:
    """Run every part of the workflow that is due."""
    now = timezone.now()
    parts: tuple[Callable[[datetime], object], ...] = (
        fail_lost_previews,
        wake_waiting_preview,
        prune_previews,
        record_measures,
        evaluate_plans,
        recheck_goldens,
    )
    for part in parts:
        try:
            part(now)
        except Exception:
            log.exception("policy workflow step failed", part=part.__name__)
