"""Query for placements whose effects are not written: node loads, workload states, audit entries and live events."""

from __future__ import annotations

from datetime import datetime

from django.db.models import F, Min

from ..models import Reservation


def oldest_without_effects() -> dict[str, datetime]:
    """Return the time of the oldest placement without written effects, by cluster name; other clusters are omitted."""
    due = Reservation.objects.filter(
        cluster__effects_due_since__isnull=False, revision__gte=F("cluster__effects_due_since")
    )
    return dict(due.order_by().values_list("cluster__name").annotate(at=Min("created_at")))
