"""Ask the systems that know what nodes do not, each at its interval, outside any transaction.

Rule: the beat finds those that are due; whoever claims one asks it, so doubled messages do no harm, and one that does
not answer holds up no other. What fails is noted with the reason and no word of the answer.
"""

from __future__ import annotations

import structlog
from celery import shared_task
from django.utils import timezone

from hetsched.adapters.collectors.registry import build
from hetsched.adapters.collectors.requests import SourceFailed
from hetsched.contracts.errors import InputError
from hetsched.inventory.collection import aliases, asker, claim, due, note_failure, take_in
from hetsched.placement import dispatch

log = structlog.get_logger(__name__)


@shared_task(name="workers.collect.tick")
def tick() -> int:
    """Have everything asked that is due; return how many that is."""
    found = due(timezone.now())
    for pk in found:
        dispatch.send(pk, dispatch.COLLECT)
    return len(found)


@shared_task(name=dispatch.COLLECT)
def run(collector_id: int) -> bool:
    """Ask one collector that is due; return whether it answered."""
    row = claim(collector_id, timezone.now())
    if row is None:
        return False
    try:
        collector = build(row.kind, row.params)
        collected = collector.collect(asker(row), aliases(row.cluster_id), timezone.now().timestamp())
    except (SourceFailed, InputError) as failed:
        code, message = failed.code, failed.message
    except Exception as error:  # a collector of somebody else's may be wrong in any way
        log.exception("a collector failed", cluster=row.cluster.name, collector=row.name)
        code, message = "CollectorFailed", f"it failed: {type(error).__name__}"
    else:
        take_in(row, collected, now=timezone.now())
        return True
    log.warning("a source did not answer", cluster=row.cluster.name, collector=row.name, code=code, reason=message)
    note_failure(row, code, message, now=timezone.now())
    return False
