"""The only writers of previews. A preview is a run of a policy version over past decisions.

A user has at most one open preview. A worker claims the preview, writes heartbeats while it runs, and writes the
result. A preview without a heartbeat for `LOST_AFTER` is lost. Nothing else is written or audited, because a preview
changes neither the cluster nor its policies. Ended previews are stored for `KEPT`, at most `MOST_KEPT` per policy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import IntegrityError
from django.utils import timezone

from hetsched.contracts.errors import InputError, Problem
from hetsched.contracts.message import Message
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import Actor
from hetsched.lab.rerun import PodChange, ReplayResult
from hetsched.policies.models import PolicyRevision, Preview
from hetsched.policies.plan_contracts import PreviewParameters
from hetsched.storage.write_lock import write_transaction

from .. import dispatch

LOST_AFTER = timedelta(minutes=3)
SHARED_OVER = timedelta(hours=1)
WOKEN_AFTER = timedelta(seconds=30)
WAITS_AT_MOST = timedelta(minutes=15)
KEPT = timedelta(days=14)
MOST_KEPT = 20


class Cancelled(Exception):
    """Raised in the run of a preview that was cancelled."""


def request_preview(
    revision: PolicyRevision,
    cluster: Cluster,
    asked: PreviewParameters,
    *,
    actor: Actor,
    owner: str,
    now: datetime | None = None,
) -> Preview:
    """Request a run of a policy version over the past decisions of a cluster.

    `owner` is the caller's stable identity.
    Raises: InputError `PreviewRunning`.
    """
    now = now or timezone.now()
    fail_lost_previews(now)
    row = Preview(
        policy=revision.policy, version=revision.version, cluster=cluster, asked=asked, asked_by=actor.name,
        owner=owner, asked_at=now,
    )  # fmt: skip
    try:
        with write_transaction():
            row.save()
            dispatch.wake(row.pk, dispatch.REPLAY)
    except IntegrityError:
        open_one = Preview.objects.filter(owner=owner, state__in=Preview.OPEN).select_related("policy").first()
        if open_one is None:
            raise
        raise InputError(
            "PreviewRunning",
            Message(
                "your preview {number} of policy {name} is still {state}",
                number=open_one.pk,
                name=open_one.policy.name,
                state=open_one.state,
            ),
            hint=Message(
                "Wait until the preview ends, or DELETE {text}",
                text=f"/api/v1/policies/{open_one.policy.name}/preview/{open_one.pk}/",
            ),
        ) from None
    return row


def claim_preview() -> Preview | None:
    """Claim the next waiting preview for the caller; return None if there is none.

    The owner with the shortest preview time within `SHARED_OVER` has precedence, then the earliest request.
    """
    now = timezone.now()
    used = _used_seconds(now)
    waiting = Preview.objects.filter(state=Preview.WAITING).order_by("asked_at", "id").values_list("pk", "owner")
    for pk, _ in sorted(waiting, key=lambda row: used.get(row[1], 0.0)):
        taken = Preview.objects.filter(pk=pk, state=Preview.WAITING)
        if taken.update(state=Preview.RUNNING, started_at=now, seen_at=now):
            return Preview.objects.select_related("policy", "cluster").get(pk=pk)
    return None


def _used_seconds(now: datetime) -> dict[str, float]:
    """Return by owner the total run time, in seconds, of the previews that started within `SHARED_OVER`."""
    used: dict[str, float] = defaultdict(float)
    began = Preview.objects.filter(started_at__gte=now - SHARED_OVER).exclude(state=Preview.WAITING)
    for owner, start, end in began.order_by().values_list("owner", "started_at", "ended_at"):
        used[owner] += ((end or now) - (start or now)).total_seconds()
    return used


def wake_waiting_preview(now: datetime) -> None:
    """Send the wake-up of a waiting preview again if no preview is running, because the first wake-up may be lost."""
    early = Preview.objects.filter(state=Preview.WAITING, asked_at__lt=now - WOKEN_AFTER).order_by("asked_at").first()
    if early is not None and not Preview.objects.filter(state=Preview.RUNNING).exists():
        dispatch.wake(early.pk, dispatch.REPLAY)


def record_progress(preview_id: int, share: float) -> None:
    """Write the progress as a fraction of 1, and a heartbeat. Raises: Cancelled if the preview is not running."""
    running = Preview.objects.filter(pk=preview_id, state=Preview.RUNNING)
    if not running.update(progress=round(min(share, 1.0), 3), seen_at=timezone.now()):
        raise Cancelled


def finish_preview(preview_id: int, result: ReplayResult, changes: Sequence[PodChange]) -> None:
    """Write the result of a preview."""
    _end(preview_id, Preview.DONE, progress=1.0, result=result, changes=tuple(changes))


def fail_preview(preview_id: int, problem: Problem) -> None:
    """Record the problem that made the preview fail."""
    _end(preview_id, Preview.FAILED, problem=problem)


def cancel_preview(preview: Preview) -> None:
    """Cancel an open preview, or delete an ended preview."""
    open_one = Preview.objects.filter(pk=preview.pk, state__in=Preview.OPEN)
    if not open_one.update(state=Preview.CANCELLED, ended_at=timezone.now()):
        Preview.objects.filter(pk=preview.pk).delete()


def fail_lost_previews(now: datetime) -> int:
    """Fail running previews without a heartbeat and previews that waited too long for a worker; return how many."""
    silent = Preview.objects.filter(state=Preview.RUNNING, seen_at__lt=now - LOST_AFTER)
    unheard = Preview.objects.filter(state=Preview.WAITING, asked_at__lt=now - WAITS_AT_MOST)
    if Preview.objects.filter(seen_at__gte=now - WAITS_AT_MOST).exists():
        unheard = unheard.none()  # A worker still runs other previews, so the waiting previews are not lost.
    lost = Problem("PreviewLost", "", Message("the worker that ran the preview was lost"))
    late = Problem("PreviewNotStarted", "", Message("no worker started the preview"))
    ended = silent.update(state=Preview.FAILED, ended_at=now, problem=lost)
    return ended + unheard.update(state=Preview.FAILED, ended_at=now, problem=late)


def prune_previews(now: datetime) -> int:
    """Delete previews that ended long ago, and all but the latest of each policy; return how many."""
    over = Preview.objects.exclude(state__in=Preview.OPEN)
    old = set(over.filter(ended_at__lt=now - KEPT).values_list("pk", flat=True))
    for policy_id in over.order_by().values_list("policy_id", flat=True).distinct():
        old |= set(over.filter(policy_id=policy_id).order_by("-pk").values_list("pk", flat=True)[MOST_KEPT:])
    Preview.objects.filter(pk__in=old).delete()
    return len(old)


def _end(preview_id: int, state: str, **columns: object) -> None:
    running = Preview.objects.filter(pk=preview_id, state=Preview.RUNNING)
    running.update(state=state, ended_at=timezone.now(), **columns)
