"""The only writers of previews: versions of policies that are run over what was decided.

Rule: a person has one preview open at a time; a worker takes it, gives signs of life while it runs, and writes what
came out. One that gave none for minutes is taken for lost. Nothing else is written, and nothing is audited: nothing of
the cluster or its policies changes. What ended is kept for some days, at most `MOST_KEPT` of each policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone

from hetsched.contracts.errors import InputError, Problem
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import Actor
from hetsched.lab.rerun import PodChange, ReplayResult
from hetsched.placement import dispatch
from hetsched.policies.models import PolicyRevision, Preview
from hetsched.policies.plan_contracts import Asked

LOST_AFTER = timedelta(minutes=3)
WAITS_AT_MOST = timedelta(minutes=15)
KEPT = timedelta(days=14)
MOST_KEPT = 20


class Cancelled(Exception):
    """Somebody cancelled the preview that runs."""


def ask_preview(
    revision: PolicyRevision, cluster: Cluster, asked: Asked, *, actor: Actor, owner: str, now: datetime | None = None
) -> Preview:
    """Have a version run over what was decided for a cluster; `owner` is a stable identity of who asks.

    Raises: InputError `PreviewRunning`.
    """
    now = now or timezone.now()
    settle_lost(now)
    row = Preview(
        policy=revision.policy, version=revision.version, cluster=cluster, asked=asked, asked_by=actor.name,
        owner=owner, asked_at=now,
    )  # fmt: skip
    try:
        with transaction.atomic():
            row.save()
            dispatch.wake(row.pk, dispatch.REPLAY)
    except IntegrityError:
        open_one = Preview.objects.filter(owner=owner, state__in=Preview.OPEN).select_related("policy").first()
        if open_one is None:
            raise
        raise InputError(
            "PreviewRunning",
            f"preview {open_one.pk} of policy {open_one.policy.name} that you asked for is {open_one.state}",
            hint=f"Wait for it, or DELETE /api/v1/policies/{open_one.policy.name}/preview/{open_one.pk}/",
        ) from None
    return row


def claim(preview_id: int) -> Preview | None:
    """Take a preview that waits, for the caller alone."""
    now = timezone.now()
    taken = Preview.objects.filter(pk=preview_id, state=Preview.WAITING)
    if not taken.update(state=Preview.RUNNING, started_at=now, seen_at=now):
        return None
    return Preview.objects.select_related("policy", "cluster").get(pk=preview_id)


def note_progress(preview_id: int, share: float) -> None:
    """Write how far it is. Raises: Cancelled when nobody waits for it any more."""
    running = Preview.objects.filter(pk=preview_id, state=Preview.RUNNING)
    if not running.update(progress=round(min(share, 1.0), 3), seen_at=timezone.now()):
        raise Cancelled


def finish(preview_id: int, result: ReplayResult, changes: Sequence[PodChange]) -> None:
    """Write what came out."""
    _end(preview_id, Preview.DONE, progress=1.0, result=result, changes=tuple(changes))


def fail(preview_id: int, problem: Problem) -> None:
    """Write why nothing came out."""
    _end(preview_id, Preview.FAILED, problem=problem)


def cancel_preview(preview: Preview) -> None:
    """End a preview that waits or runs; forget one that is over."""
    open_one = Preview.objects.filter(pk=preview.pk, state__in=Preview.OPEN)
    if not open_one.update(state=Preview.CANCELLED, ended_at=timezone.now()):
        Preview.objects.filter(pk=preview.pk).delete()


def settle_lost(now: datetime) -> int:
    """End what runs without a sign of life, or waited too long for a worker; return how many that is."""
    silent = Preview.objects.filter(state=Preview.RUNNING, seen_at__lt=now - LOST_AFTER)
    unheard = Preview.objects.filter(state=Preview.WAITING, asked_at__lt=now - WAITS_AT_MOST)
    lost = Problem("PreviewLost", "", "the worker that ran it is gone")
    late = Problem("PreviewNotStarted", "", "no worker took it")
    ended = silent.update(state=Preview.FAILED, ended_at=now, problem=lost)
    return ended + unheard.update(state=Preview.FAILED, ended_at=now, problem=late)


def forget_previews(now: datetime) -> int:
    """Delete what ended long ago, and all but the last ones of each policy; return how many went."""
    over = Preview.objects.exclude(state__in=Preview.OPEN)
    old = set(over.filter(ended_at__lt=now - KEPT).values_list("pk", flat=True))
    for policy_id in over.order_by().values_list("policy_id", flat=True).distinct():
        old |= set(over.filter(policy_id=policy_id).order_by("-pk").values_list("pk", flat=True)[MOST_KEPT:])
    Preview.objects.filter(pk__in=old).delete()
    return len(old)


def _end(preview_id: int, state: str, **columns: object) -> None:
    running = Preview.objects.filter(pk=preview_id, state=Preview.RUNNING)
    running.update(state=state, ended_at=timezone.now(), **columns)
