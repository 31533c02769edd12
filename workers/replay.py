"""Run a version of a policy over what was decided, for somebody who wants to know before it decides.

Rule: the row says what is asked; whoever claims it runs it, so a doubled message does no harm. A run tells its progress
about once a second, ends when it was cancelled, and is given `HETSCHED_REPLAY_SECONDS`. What fails is told on the row.
"""

from __future__ import annotations

import time

import structlog
from celery import shared_task
from django.conf import settings

from hetsched.contracts.errors import InputError, Problem
from hetsched.placement import dispatch
from hetsched.placement.actions.previews import Cancelled, claim, fail, finish, note_progress
from hetsched.placement.queries.replay import replay

_TELL_SECONDS = 1.0
log = structlog.get_logger(__name__)


@shared_task(name=dispatch.REPLAY)
def run(preview_id: int) -> bool:
    """Run one preview that waits; return whether something came out."""
    row = claim(preview_id)
    if row is None:
        return False
    revision = row.policy.revisions.filter(version=row.version).first()
    if revision is None:
        fail(
            row.pk, Problem("PolicyVersionUnknown", "version", f"policy {row.policy.name} has no version {row.version}")
        )
        return False
    try:
        result, changes = replay(row.cluster, revision.spec, row.asked, progress=_Clock(row.pk))
    except Cancelled:
        return False
    except InputError as error:
        fail(row.pk, Problem(error.code, error.place, str(error)))
        return False
    except Exception as error:
        log.exception("a preview failed", preview=row.pk, policy=row.policy.name, version=row.version)
        fail(row.pk, Problem("PreviewFailed", "", f"it failed: {type(error).__name__}; the log says more"))
        return False
    finish(row.pk, result, changes)
    return True


class _Clock:
    """Tells the progress of one run, and ends it when its time is over."""

    def __init__(self, preview_id: int) -> None:
        self._preview_id = preview_id
        self._began = self._told = time.monotonic()

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        if now - self._told < _TELL_SECONDS:
            return
        self._told = now
        note_progress(self._preview_id, share)
        if now - self._began > settings.HETSCHED_REPLAY_SECONDS:
            raise InputError(
                "PreviewTooLong",
                f"it took more than {settings.HETSCHED_REPLAY_SECONDS} s at {share:.0%}",
                hint="Ask for fewer decisions",
            )
