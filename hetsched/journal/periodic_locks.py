"""Locks that let a periodic task run once per period, even if it is triggered several times.

Two beat processes trigger a task twice, a broker can deliver it twice, and a worker that was down receives all missed
triggers together. A task therefore acquires its lock first, a row per task, which is granted at most once in half a
period by the database's clock. A row with a time in the future was written before that clock was set back, and does not
block the task.
"""

from __future__ import annotations

from datetime import timedelta

from django.db.models import F, Q
from django.db.models.functions import Now

from hetsched.contracts.documents import encode
from hetsched.storage.snapshot_read import database_now

from . import metric_names
from .models import Figure


def acquire(work: str, period_seconds: float) -> bool:
    """Acquire the lock of a task for the current period; return False if it has been acquired already."""
    labels = encode([work]).decode()
    row = {"name": metric_names.TICKS.name, "labels": labels, "part": ""}
    over = Q(at__lte=Now() - timedelta(seconds=period_seconds / 2)) | Q(
        at__gt=Now() + timedelta(seconds=period_seconds)
    )
    if Figure.objects.filter(over, **row).update(at=Now(), value=F("value") + 1):
        return True
    return Figure.objects.get_or_create(**row, defaults={"value": 1, "at": database_now()})[1]
