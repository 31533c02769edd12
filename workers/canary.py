"""Canary tasks for every task queue, and a check of the database invariants.

Every few seconds a canary task is sent through each queue. It takes the same path as all tasks: beat, broker, worker,
database. The invariant check reads one consistent snapshot, changes nothing and reports violations to the log and to
`/metrics`.
"""

from __future__ import annotations

from collections import Counter

import structlog
from celery import shared_task

from hetsched.journal import counters, metric_names
from hetsched.placement.queries.invariants import CHECKED, check_invariants

_MOST_REPORTED = 20
log = structlog.get_logger(__name__)


@shared_task(name="workers.canary.run")
def run(queue: str) -> None:
    """Count a canary task of a queue; the counter is written when the task ends."""
    counters.add(metric_names.CANARY, queue)


@shared_task(name="workers.canary.check")
def check() -> int:
    """Check the invariants; return the number of violations."""
    found = check_invariants()
    for violation in found[:_MOST_REPORTED]:
        log.error("invariant broken", id=violation.id, where=violation.where, reason=violation.message)
    counted = Counter(violation.id for violation in found)
    counters.set_values(metric_names.VIOLATIONS, {(name,): counted[name] for name in (*CHECKED, *counted)})
    return len(found)
