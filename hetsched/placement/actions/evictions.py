"""Evictions of the victims of nominated pods in a live cluster.

`preemption` creates the nominations and their `Eviction` rows. Members of incomplete gangs are evicted in the same way,
without a nominated pod: see `gangs`.

Each attempt is claimed first, made outside any transaction, and recorded. A victim that is placed but not bound yet
goes back to the queue immediately, because the API server does not know of its placement. Its gang goes back with it,
unless enough members remain. If the API server rejects an eviction, the victim is spared for `SPARED` and the
nomination ends: the nominated pod is scheduled again. A nomination also ends if its victims were not deleted within
`PATIENCE`; the victims keep their reservations until the watch reports their deletion.
Several victims of one nomination or of the nominations that one decision made for a gang, and the pods of one step of a
rebalance plan, belong together: none of them is evicted until a dry run has allowed all of their evictions. If one
eviction is rejected, all these nominations end.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from datetime import timedelta
from itertools import chain

import msgspec
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from hetsched.contracts.message import HIDDEN, Message, joined
from hetsched.inventory.models import Cluster
from hetsched.inventory.node_loads import advance
from hetsched.placement.lifecycle import HOLDING, QUEUED, State
from hetsched.placement.models import Eviction, Nomination, Pod, Preemption
from hetsched.placement.models.nominations import nominations_of_gang
from hetsched.storage.batches import batched
from hetsched.storage.bulk_rows import insert, new
from hetsched.storage.write_lock import write_transaction

from .. import dispatch
from .change import BACK_IN_QUEUE, ClusterTransaction, write_messages
from .gangs import recover_gangs_of

CLAIM = timedelta(seconds=60)
SPARED = timedelta(minutes=2)
PATIENCE = timedelta(minutes=15)
LONGEST_WAIT_SECONDS = 60
_HOLDS = Q(nomination=None) | Q(nomination__active=True)
_HOLDING = [state.value for state in HOLDING]
_QUEUED = [state.value for state in QUEUED]


class ClaimedEviction(msgspec.Struct):
    """A claimed eviction with its victim and, for a preemption, the nominated pod."""

    eviction: Eviction
    victim: Pod
    nominee: Pod | None
    node: str

    @property
    def short(self) -> str:
        """Return the reason for the eviction as a message for the victim."""
        return self.eviction.reason if self.nominee is None else Message("Preempted by {pods}", pods=self.nominee.key)

    @property
    def sentence(self) -> str:
        """Return the text of the victim's condition: the reason, or the preemptor (hidden if in another namespace)."""
        if self.nominee is None:
            return self.eviction.reason
        preemptor = self.nominee.key if self.nominee.namespace == self.victim.namespace else HIDDEN
        whose = f"{preemptor} (priority {self.nominee.priority})"
        return (
            f"Preempted by {whose}, which needs resources on {self.node}; this pod has priority {self.victim.priority}"
        )


def due_evictions(cluster_id: int) -> QuerySet[Eviction]:
    """Return the evictions of a cluster that are due now."""
    now = Q(not_before=None) | Q(not_before__lte=timezone.now())
    return Eviction.objects.filter(now, _HOLDS, state=Eviction.WANTED, cluster_id=cluster_id)


def claim_evictions(cluster_id: int, most_groups: int) -> list[list[ClaimedEviction]]:
    """Claim the first due evictions and return them in groups, at most `most_groups`.

    A group contains the evictions of one nomination, of the nominations that one decision made for a gang, or of one
    plan step; an eviction without either is its own group.
    """
    groups: dict[Hashable, list[int]] = {}
    with write_transaction():
        due = due_evictions(cluster_id).select_related("move", "nomination__pod").order_by("id")
        due = due.only(
            "move__rebalance_id", "move__step",
            "nomination__revision", "nomination__pod__namespace", "nomination__pod__gang",
        )  # fmt: skip
        for eviction in due.select_for_update(skip_locked=True, of=("self",)):
            key = _group_key(eviction)
            if key in groups or len(groups) < most_groups:
                groups.setdefault(key, []).append(eviction.pk)
        ids = list(chain.from_iterable(groups.values()))
        for some in batched(ids):
            Eviction.objects.filter(pk__in=some).update(not_before=timezone.now() + CLAIM, attempts=F("attempts") + 1)
    rows: dict[int, Eviction] = {}
    for some in batched(ids):
        found = Eviction.objects.filter(pk__in=some).select_related("victim", "nomination__pod", "nomination__node")
        rows |= found.defer("victim__spec", "nomination__pod__spec", "nomination__node__report").in_bulk()
    return [[_claimed_eviction(rows[pk]) for pk in group] for group in groups.values()]


def _group_key(eviction: Eviction) -> Hashable:
    """Return the key of the eviction's nomination, gang or plan step; for an eviction without either, its own key."""
    nomination = eviction.nomination
    if nomination is not None:
        pod = nomination.pod
        return ("gang", pod.namespace, pod.gang, nomination.revision) if pod.gang else ("nomination", nomination.pk)
    move = eviction.move
    return ("eviction", eviction.pk) if move is None else ("step", move.rebalance_id, move.step)


def _claimed_eviction(eviction: Eviction) -> ClaimedEviction:
    to = eviction.nomination
    return ClaimedEviction(
        eviction, eviction.victim, None if to is None else to.pod, "" if to is None else to.node.name
    )


def still_wanted(claimed: Sequence[ClaimedEviction]) -> set[int]:
    """Return the IDs of the evictions in the state `wanted` whose nomination, if any, is active."""
    found: set[int] = set()
    for some in batched([item.eviction.pk for item in claimed]):
        rows = Eviction.objects.filter(_HOLDS, pk__in=some, state=Eviction.WANTED)
        found.update(rows.values_list("pk", flat=True))
    return found


def mark_requested(claimed: Sequence[ClaimedEviction]) -> None:
    """Record that the API server accepted the evictions, or that the victims no longer exist."""
    for some in batched([item.eviction.pk for item in claimed]):
        rows = Eviction.objects.filter(pk__in=some, state=Eviction.WANTED)
        rows.update(state=Eviction.ASKED, not_before=None)


def retry_later(claimed: ClaimedEviction, seconds: float = 0.0) -> None:
    """Record that the result is unknown; the eviction is retried after a back-off of at least `seconds`."""
    wait = timedelta(seconds=max(seconds, min(2**claimed.eviction.attempts, LONGEST_WAIT_SECONDS)))
    rows = Eviction.objects.filter(pk=claimed.eviction.pk, state=Eviction.WANTED)
    rows.update(not_before=timezone.now() + wait)


def mark_refused(cluster_id: int, claimed: ClaimedEviction, message: str) -> None:
    """Record a rejected eviction: the victim is spared for `SPARED` and the nominated pod is scheduled again.

    An eviction without a nominated pod is retried after `SPARED`.
    """
    if claimed.nominee is None:
        Eviction.objects.filter(pk=claimed.eviction.pk).update(not_before=timezone.now() + SPARED, message=message)
        return
    with write_transaction():
        change = ClusterTransaction(advance(cluster_id))
        spared = {"state": Eviction.REFUSED, "not_before": change.now + SPARED, "message": message}
        Eviction.objects.filter(pk=claimed.eviction.pk).update(**spared)
        _end_nominations(
            change,
            [claimed.nominee.pk],
            Message("{pod} may not be evicted: {detail}", pod=claimed.victim.key, detail=message),
        )
        change.close()
        dispatch.wake(cluster_id)


def displace(cluster_id: int, claimed: ClaimedEviction) -> int:
    """Send a placed victim and all other placed victims of its nomination back to the queue; return how many pods.

    Return 0 if the binding of the victim has begun. A gang that is then below its minimum goes back as a whole; see
    `gangs`.
    """
    with write_transaction():
        change = ClusterTransaction(advance(cluster_id))
        nomination = claimed.eviction.nomination
        same = Q(pk=claimed.eviction.pk) if nomination is None else Q(nomination=nomination)
        wanted = Eviction.objects.filter(same, state=Eviction.WANTED, victim__state=State.PLACED.value)
        rows = list(wanted.select_related("victim").order_by("victim_id"))
        if claimed.victim.pk not in {row.victim_id for row in rows}:
            return 0
        victims = [row.victim for row in rows]
        if nomination is not None:
            _note_preemptions([(nomination, victim.pk) for victim in victims])
        change.free(victims, claimed.short)
        change.move(victims, State.PENDING, **BACK_IN_QUEUE, message=claimed.short)
        Eviction.objects.filter(pk__in=[row.pk for row in rows]).update(state=Eviction.ASKED, not_before=None)
        recover_gangs_of(change, victims, claimed.short)
        requeue_nominees([victim.pk for victim in victims])
        change.requeue()
        change.close()
        dispatch.wake(cluster_id)
    return len(victims)


def overdue_nominations(cluster_id: int) -> QuerySet[Nomination]:
    """Return the active nominations older than `PATIENCE`."""
    late = timezone.now() - PATIENCE
    return Nomination.objects.filter(cluster_id=cluster_id, active=True, created_at__lt=late)


def end_overdue_nominations(cluster_id: int) -> int:
    """End nominations with victims that were not deleted in time; return how many nominations ended."""
    with write_transaction():
        rows = overdue_nominations(cluster_id)
        if not rows.exists():
            return 0
        change = ClusterTransaction(advance(cluster_id))
        staying = Eviction.objects.filter(nomination__in=rows, victim__state__in=_HOLDING)
        pods = sorted(rows.values_list("pod_id", flat=True))
        minutes = int(PATIENCE.total_seconds() // 60)
        message = Message("the pod was not deleted within {n} minutes", n=minutes)
        staying.update(state=Eviction.REFUSED, not_before=change.now + PATIENCE, message=message)
        _end_nominations(change, pods, Message("the victims were not deleted within {n} minutes", n=minutes))
        change.close()
        dispatch.wake(cluster_id)
    return len(pods)


def unevictable_pods(cluster_id: int) -> dict[str, tuple[int, str]]:
    """Return the pods that are currently not evicted again: pod key -> (preemptor's pod id, API server's message)."""
    refused = Eviction.objects.filter(cluster_id=cluster_id, state=Eviction.REFUSED, not_before__gt=timezone.now())
    columns = "victim__namespace", "victim__name", "nomination__pod_id", "message"
    found = refused.order_by("id").values_list(*columns)
    return {f"{namespace}/{name}": (pod_id, message) for namespace, name, pod_id, message in found}


def requeue_nominees(victim_ids: Sequence[int]) -> None:
    """Requeue, without back-off, the nominated pods with these victims, unless others remain on the nominated node.

    A gang is requeued after the last of these victims of all its members: each attempt decides all members again.
    """
    for some in batched(victim_ids):
        ended = Nomination.objects.filter(active=True, evictions__victim_id__in=some)
        remaining = Eviction.objects.filter(
            nomination=OuterRef("pk"), victim__state__in=_HOLDING, victim__node=OuterRef("node")
        )
        pods = set(ended.filter(~Exists(remaining), pod__gang="").values_list("pod_id", flat=True))
        gangs = ended.exclude(pod__gang="").values_list("cluster_id", "revision", "pod__namespace", "pod__gang")
        for gang in gangs.distinct():
            nominations = nominations_of_gang(*gang)
            remaining = Eviction.objects.filter(
                nomination__in=nominations, victim__state__in=_HOLDING, victim__node=F("nomination__node")
            )
            if not remaining.exists():
                pods.update(nominations.values_list("pod_id", flat=True))
        for pod_ids in batched(sorted(pods)):
            Pod.objects.filter(pk__in=pod_ids, state__in=_QUEUED).update(queued=True, not_before=None, flushed=False)


def requeue_nominees_of_uids(cluster: Cluster, uids: Sequence[str]) -> None:
    """Requeue, without back-off, the nominated pods that have victims with these uids."""
    for some in batched(uids):
        asked = Eviction.objects.filter(cluster=cluster, nomination__active=True, victim__uid__in=some)
        pods = list(asked.values_list("nomination__pod_id", flat=True))
        Pod.objects.filter(pk__in=pods, state__in=_QUEUED).update(queued=True, not_before=None, flushed=False)


def mark_victims(victim_ids: Sequence[int]) -> None:
    """Write into the message of each ended pod that was evicted who preempted it, or the reason of the eviction."""
    if not victim_ids:
        return
    asked = (
        Eviction.objects.filter(state=Eviction.ASKED)
        .select_related("nomination__pod", "nomination__node", "victim")
        .defer("nomination__pod__spec", "nomination__node__report", "victim__spec")
        .order_by("id")
    )
    evictions = list(chain.from_iterable(asked.filter(victim_id__in=some) for some in batched(victim_ids)))
    _note_preemptions([(one.nomination, one.victim_id) for one in evictions if one.nomination is not None])
    messages = []
    for eviction in evictions:
        message = eviction.reason
        if eviction.nomination is not None:
            message = Message("Preempted by {pods}", pods=eviction.nomination.pod.key)
        if eviction.victim.state == State.FAILED and eviction.victim.message:
            message = joined(": ", [message, eviction.victim.message])
        messages.append((message, eviction.victim_id))
    write_messages(messages)


def _note_preemptions(pairs: Sequence[tuple[Nomination, int]]) -> None:
    """Record that victims (ids) were preempted for the nominated pods; idempotent."""
    columns = ("victim_id", "preemptor_id", "node_name")
    known = {
        row
        for some in batched([victim_id for _, victim_id in pairs])
        for row in Preemption.objects.filter(victim_id__in=some).values_list(*columns)
    }
    missing = {(victim_id, nomination.pod_id, nomination.node.name): nomination.pod for nomination, victim_id in pairs}
    rows = [
        new(
            Preemption,
            victim_id=victim_id,
            preemptor_id=pod.pk,
            node_name=node,
            decision_id=pod.decision_id,
            namespace=pod.namespace,
            name=pod.name,
            created_at=timezone.now(),
        )
        for (victim_id, preemptor_id, node), pod in missing.items()
        if (victim_id, preemptor_id, node) not in known
    ]
    insert(rows)


def _end_nominations(change: ClusterTransaction, pod_ids: list[int], reason: str) -> None:
    change.end_nominations(pod_ids, reason)
    Pod.objects.filter(pk__in=pod_ids, state__in=_QUEUED).update(queued=True, not_before=None, flushed=False)
    change.requeue()
