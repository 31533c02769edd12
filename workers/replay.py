"""Replay recorded decisions under a version of a policy, as a preview before it is activated.

Previews have their own queue and a worker process that runs one preview at a time, so they never delay a decision. The
request is stored in a row. The worker that claims the row runs the preview, so a duplicate message is harmless. A
message names the requested preview, but the worker chooses a preview of the user with the smallest recent run time. A
run reports its progress about once a second, ends when it is cancelled, and is limited to `HETSCHED_REPLAY_SECONDS`. A
failure is stored in the row.
"""

from __future__ import annotations

import time

import structlog
from celery import shared_task
from django.conf import settings

from hetsched.contracts.errors import InputError, Problem
from hetsched.contracts.message import Message
from hetsched.placement import dispatch
from hetsched.placement.actions.previews import Cancelled, claim_preview, fail_preview, finish_preview, record_progress
from hetsched.placement.queries.replay import replay

_PROGRESS_SECONDS = 1.0
log = structlog.get_logger(__name__)


@shared_task(name=dispatch.REPLAY)
def run(preview_id: int) -> bool:
    """Run the next pending preview; return whether it produced a result."""
    row = claim_preview()
    if row is None:
        return False
    revision = row.policy.revisions.filter(version=row.version).first()
    if revision is None:
        message = Message("policy {name} has no version {version}", name=row.policy.name, version=row.version)
        fail_preview(row.pk, Problem("PolicyVersionUnknown", "version", message))
        return False
    try:
        result, changes = replay(row.cluster, revision.spec, row.asked, progress=_Clock(row.pk))
    except Cancelled:
        return False
    except InputError as error:
        fail_preview(row.pk, Problem(error.code, error.place, error.advice))
        return False
    except Exception as error:
        log.exception("preview failed", preview=row.pk, policy=row.policy.name, version=row.version)
        message = Message("the preview failed: {name}; see the log", name=type(error).__name__)
        fail_preview(row.pk, Problem("PreviewFailed", "", message))
        return False
    finish_preview(row.pk, result, changes)
    return True


class _Clock:
    """Callback of a replay that records its progress and aborts it at the time limit."""

    def __init__(self, preview_id: int) -> None:
        self._preview_id = preview_id
        self._began = self._reported_at = time.monotonic()

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        if now - self._reported_at < _PROGRESS_SECONDS:
            return
        self._reported_at = now
        record_progress(self._preview_id, share)
        if now - self._began > settings.HETSCHED_REPLAY_SECONDS:
            raise InputError(
                "PreviewTooLong",
                Message(
                    "the preview was stopped after {n} s, with {share} of the decisions replayed",
                    n=settings.HETSCHED_REPLAY_SECONDS,
                    share=f"{share:.0%}",
                ),
                hint="Replay fewer decisions",
            )
