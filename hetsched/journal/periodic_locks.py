"""Do periodic work once a slot, however often it is asked for.

Problem: two beats ask twice, a broker may deliver twice, and a worker that was away finds the ticks of all the time.
Rule: whoever wants to do it takes the slot, one row for each kind of work, by the clock of the database: at most once
in half a period. A row of the future was written before that clock was set back, and holds nobody up.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec
from django.db.models import F, Q
from django.db.models.functions import Now

from hetsched.storage.snapshot_read import shared_now

from . import figures
from .models import Figure


def take(work: str, period_seconds: float) -> bool:
    """Take the present slot of this work; False where somebody had it."""
    labels = msgspec.json.encode([work]).decode()
    row = {"name": figures.TICKS.name, "labels": labels, "part": ""}
    over = Q(at__lte=Now() - timedelta(seconds=period_seconds / 2)) | Q(
        at__gt=Now() + timedelta(seconds=period_seconds)
    )
    if Figure.objects.filter(over, **row).update(at=Now(), value=F("value") + 1):
        return True
    return Figure.objects.get_or_create(**row, defaults={"value": 1, "at": shared_now()})[1]
