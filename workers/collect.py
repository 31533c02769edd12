"""Query the external sources of node metrics, each at its own interval, outside any transaction.

The beat finds the due collectors. A task claims its collector before it queries it, so duplicate messages are harmless.
A source that does not respond does not delay the others. A failure is recorded with its reason, without any content of
the response.
"""

from __future__ import annotations

import structlog
from celery import shared_task
from django.utils import timezone

from hetsched.adapters.collectors.registry import build
from hetsched.adapters.collectors.requests import SourceError
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.inventory.collection import (
    claim_collector,
    due_collectors,
    http_client,
    node_aliases,
    record_failure,
    store_findings,
)
from hetsched.placement import dispatch

log = structlog.get_logger(__name__)


@shared_task(name="workers.collect.tick")
def tick() -> int:
    """Enqueue all due collectors; return their number."""
    found = due_collectors(timezone.now())
    for pk in found:
        dispatch.send(pk, dispatch.COLLECT)
    return len(found)


@shared_task(name=dispatch.COLLECT)
def run(collector_id: int) -> bool:
    """Run one collector if it is due; return whether it succeeded."""
    row = claim_collector(collector_id, timezone.now())
    if row is None:
        return False
    try:
        collector = build(row.kind, row.params)
        collected = collector.collect(http_client(row), node_aliases(row.cluster_id), timezone.now().timestamp())
    except (SourceError, InputError) as failed:
        code, message = failed.code, failed.message
    except Exception as error:  # a third-party collector may fail in any way
        log.exception("collector failed", cluster=row.cluster.name, collector=row.name)
        code, message = "CollectorFailed", Message("the collector failed: {name}", name=type(error).__name__)
    else:
        store_findings(row, collected, now=timezone.now())
        return True
    log.warning("source did not respond", cluster=row.cluster.name, collector=row.name, code=code, reason=message)
    record_failure(row, code, message, now=timezone.now())
    return False
