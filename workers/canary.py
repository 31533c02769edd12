"""Show that each queue is worked on, and that what must be true is.

Rule: a canary goes through each queue every few seconds, by the way that all work takes: beat, message store, worker,
database. The check of the invariants reads everything as it was at one moment, changes nothing and tells what it found
to the log and to `/metrics`.
"""

from __future__ import annotations

from collections import Counter

import structlog
from celery import shared_task

from hetsched.journal import counters, figures
from hetsched.placement.queries.invariants import CHECKED, check_invariants

_MOST_TOLD = 20
log = structlog.get_logger(__name__)


@shared_task(name="workers.canary.run")
def run(queue: str) -> None:
    """Say that somebody works on a queue; the count is written when the task ends."""
    counters.add(figures.CANARY, queue)


@shared_task(name="workers.canary.check")
def check() -> int:
    """Look for broken invariants; return how many there are."""
    found = check_invariants()
    for violation in found[:_MOST_TOLD]:
        log.error("invariant broken", id=violation.id, where=violation.where, reason=violation.message)
    counted = Counter(violation.id for violation in found)
    counters.put(figures.VIOLATIONS, {(name,): counted[name] for name in (*CHECKED, *counted)})
    return len(found)
