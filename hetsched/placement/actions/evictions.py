"""Have pods of a live cluster leave for a nominated one, and give nominations up that will not come true.

Pods of gangs that did not become whole leave the same way, for nobody: see `gangs`.

Rule: rows say who is to be asked; each try is claimed first, made outside any transaction, and noted. A victim that is
placed and not bound yet goes back to the queue at once: only we know of it. One that is refused is spared for `SPARED`,
and the nomination ends with it: the pod looks for others. So does one whose victims were asked and did not go within
`PATIENCE`; they hold what they hold until they are seen to be gone. Of a nomination with several victims none is asked
before the API server said of each that it may leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

import msgspec
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from hetsched.inventory.ledger import advance
from hetsched.placement import dispatch
from hetsched.placement.lifecycle import HOLDING, QUEUED, State
from hetsched.placement.models import Eviction, Nomination, Pod
from hetsched.storage.batches import parts
from hetsched.storage.prepared_queries import Among, Given, Prepared

from .change import BACK_IN_QUEUE, Change

CLAIM = timedelta(seconds=60)
SPARED = timedelta(minutes=2)
PATIENCE = timedelta(minutes=15)
LONGEST_WAIT_SECONDS = 60
_HOLDS = Q(nomination=None) | Q(nomination__active=True)
_HOLDING = [state.value for state in HOLDING]
_QUEUED = [state.value for state in QUEUED]


class Leaving(msgspec.Struct):
    """One eviction that somebody claimed, with its victim and whom it makes room for, where that is somebody."""

    eviction: Eviction
    victim: Pod
    nominee: Pod | None
    node: str

    @property
    def short(self) -> str:
        """Why the victim leaves, as a pod's message."""
        return self.eviction.reason if self.nominee is None else f"Preempted by {self.nominee.key}"

    @property
    def sentence(self) -> str:
        """Who needs the place of the victim, and why it is this one's; or why it may not stay."""
        if self.nominee is None:
            return self.eviction.reason
        whose = f"{self.nominee.key} (priority {self.nominee.priority})"
        return f"Preempted by {whose}, which needs room on {self.node}; this pod has priority {self.victim.priority}"


def due_evictions(cluster_id: int) -> QuerySet[Eviction]:
    """Return the evictions of a cluster that somebody should ask for now."""
    now = Q(not_before=None) | Q(not_before__lte=timezone.now())
    return Eviction.objects.filter(now, _HOLDS, state=Eviction.WANTED, cluster_id=cluster_id)


def claim_evictions(cluster_id: int) -> Iterator[list[Leaving]]:
    """Take what is due, so that nobody else asks meanwhile, one list for each nomination; others stand alone.

    Each is taken when its turn comes: however many there are, and however slow the API server is, a claim lasts.
    """
    due: dict[int, list[Eviction]] = {}
    rows = due_evictions(cluster_id).select_related("victim", "nomination__pod", "nomination__node")
    for one in rows.defer("victim__spec", "nomination__pod__spec", "nomination__node__report").order_by("id"):
        due.setdefault(-one.pk if one.nomination_id is None else one.nomination_id, []).append(one)
    for group in due.values():
        if taken := [_leaving(one) for one in group if _take(cluster_id, one)]:
            yield taken


def _take(cluster_id: int, one: Eviction) -> bool:
    same = due_evictions(cluster_id).filter(pk=one.pk, attempts=one.attempts)
    taken = same.update(not_before=timezone.now() + CLAIM, attempts=F("attempts") + 1)
    one.attempts += taken
    return bool(taken)


def _leaving(one: Eviction) -> Leaving:
    to = one.nomination
    return Leaving(one, one.victim, None if to is None else to.pod, "" if to is None else to.node.name)


def is_still_wanted(one: Leaving) -> bool:
    """Tell whether the nomination still holds."""
    return Eviction.objects.filter(_HOLDS, pk=one.eviction.pk, state=Eviction.WANTED).exists()


def asked(one: Leaving) -> None:
    """Note that the API server takes the victim off, or has it no more."""
    Eviction.objects.filter(pk=one.eviction.pk, state=Eviction.WANTED).update(state=Eviction.ASKED, not_before=None)


def ask_again(one: Leaving, seconds: float = 0.0) -> None:
    """Note that nobody knows yet; it is asked again later."""
    wait = timedelta(seconds=max(seconds, min(2**one.eviction.attempts, LONGEST_WAIT_SECONDS)))
    rows = Eviction.objects.filter(pk=one.eviction.pk, state=Eviction.WANTED)
    rows.update(not_before=timezone.now() + wait)


def refuse(cluster_id: int, one: Leaving, message: str) -> None:
    """Note that the victim stays: it is spared for a while, and the pod it should make room for looks for others.

    Where it should leave for nobody, it is asked again then.
    """
    if one.nominee is None:
        Eviction.objects.filter(pk=one.eviction.pk).update(not_before=timezone.now() + SPARED, message=message[:500])
        return
    with transaction.atomic():
        change = Change(advance(cluster_id))
        spared = {"state": Eviction.REFUSED, "not_before": change.now + SPARED, "message": message[:500]}
        Eviction.objects.filter(pk=one.eviction.pk).update(**spared)
        _give_up(change, [one.nominee.pk], f"{one.victim.key} may not be evicted: {message}")
        change.close()
        dispatch.wake(cluster_id)


def displace(cluster_id: int, one: Leaving) -> bool:
    """Send a victim back to the queue that nobody has begun to bind; False where somebody has."""
    with transaction.atomic():
        change = Change(advance(cluster_id))
        rows = Pod.objects.filter(pk=one.victim.pk, state=State.PLACED.value).defer("spec")
        victims = list(rows)
        if not victims:
            return False
        change.free(victims, one.short)
        change.move(victims, State.PENDING, **BACK_IN_QUEUE, message=one.short)
        asked(one)
        wake_nominees([one.victim.pk])
        change.requeue()
        change.close()
        dispatch.wake(cluster_id)
    return True


def late_nominations(cluster_id: int) -> QuerySet[Nomination]:
    """Return the nominations that did not come true in time."""
    late = timezone.now() - PATIENCE
    return Nomination.objects.filter(cluster_id=cluster_id, active=True, created_at__lt=late)


def give_up_late(cluster_id: int) -> int:
    """End the nominations whose victims do not go; return how many."""
    with transaction.atomic():
        rows = late_nominations(cluster_id)
        if not rows.exists():
            return 0
        change = Change(advance(cluster_id))
        staying = Eviction.objects.filter(nomination__in=rows, victim__state__in=_HOLDING)
        pods = sorted(rows.values_list("pod_id", flat=True))
        minutes = int(PATIENCE.total_seconds() // 60)
        message = f"it did not leave within {minutes} minutes"
        staying.update(state=Eviction.REFUSED, not_before=change.now + PATIENCE, message=message)
        _give_up(change, pods, f"who should leave did not within {minutes} minutes")
        change.close()
        dispatch.wake(cluster_id)
    return len(pods)


def spared(cluster_id: int) -> dict[str, tuple[int, str]]:
    """Return who may not be evicted for the time being, with the pod for which that was asked and what was said."""
    found = _SPARED(cluster=cluster_id, now=timezone.now())
    return {f"{namespace}/{name}": (pod_id, message) for namespace, name, pod_id, message in found}


_SPARED = Prepared(
    lambda: (
        Eviction.objects.filter(state=Eviction.REFUSED, not_before__gt=Given("now"), cluster=Given("cluster"))
        .order_by("id")
        .values_list("victim__namespace", "victim__name", "nomination__pod_id", "message")
    )
)


def wake_nominees(victim_ids: Sequence[int]) -> None:
    """Have those looked at again at once for whom these pods left."""
    for pods in parts(_NOMINEES(victims=victim_ids)):
        Pod.objects.filter(pk__in=pods, state__in=_QUEUED).update(queued=True, not_before=None, flushed=False)


_NOMINEES = Prepared(
    lambda: Eviction.objects.filter(victim_id__in=Among("victims"), nomination__active=True).values_list(
        "nomination__pod_id", flat=True
    )
)
_ASKED_TO_LEAVE = Prepared(
    lambda: (
        Eviction.objects.filter(victim_id__in=Among("victims"), state=Eviction.ASKED)
        .select_related("nomination__pod", "victim")
        .defer("nomination__pod__spec", "victim__spec")
        .order_by("id")
    )
)


def tell_who_left(victim_ids: Sequence[int]) -> None:
    """Say of pods that are over for whom they left, if they did."""
    for one in _ASKED_TO_LEAVE(victims=victim_ids):
        left = one.reason if one.nomination is None else f"Preempted by {one.nomination.pod.key}"
        more = f": {one.victim.message}" if one.victim.state == State.FAILED and one.victim.message else ""
        Pod.objects.filter(pk=one.victim_id).update(message=left + more)


def _give_up(change: Change, pod_ids: list[int], reason: str) -> None:
    change.end_nominations(pod_ids, reason)
    Pod.objects.filter(pk__in=pod_ids, state__in=_QUEUED).update(queued=True, not_before=None, flushed=False)
    change.requeue()
