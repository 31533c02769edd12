"""What a pod held that was deleted by force: kept until its containers must have ended.

Problem: a pod that is deleted by force is gone from the API server at once; its containers end when the kubelet gets to
it, if it can. Whoever gets its CPUs or cards before shares them with containers that nobody sees any more.
Rule: kubelets report an end before a pod goes. One that goes while its containers ran when it was last seen leaves a
remnant: a pod of ours alone, `NAME~UID`, which nobody can create, and which holds on its node what the pod held. It is
let go `HETSCHED_FORCED_HOLD_SECONDS` later if its node is ready then, so that the kubelet had that long to end what the
API server has no more; where the node is not, that time begins anew. A node that the API server has no more takes
nobody, so nothing is kept on it.
Source: kubernetes/kubernetes#141471, "Force Delete StatefulSet Pods"; kubelets report terminal phases since 1.27.
Invariant: what was held is held by the pod or its remnant, in one step, by never both.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from hetsched.contracts.workload import PodSpec
from hetsched.inventory.ledger import advance

from .. import dispatch
from ..bookings import Booked
from ..lifecycle import State
from ..models import Pod, Reservation
from .change import Change

_NAME = 200  # characters of a pod's name that its remnant keeps
MARK = "~"  # no API server takes it in a name, so no pod is ever mistaken for a remnant


class Held(msgspec.Struct, frozen=True):
    """What one pod holds that is about to be over, though its containers may run."""

    pod: Pod
    reservation: Reservation


def held_by(rows: Sequence[Pod], uids: set[str]) -> list[Held]:
    """Return what those of these pods hold that went while their containers ran."""
    found = {row.pk: row for row in rows if row.uid in uids and row.node is not None and not row.node.gone}
    reservations = Reservation.objects.filter(pod_id__in=found, active=True).select_related("pod").order_by("id")
    return [Held(reservation.pod, reservation) for reservation in reservations]


def keep_remnants(change: Change, left: Sequence[Held]) -> None:
    """Book again, for nobody, what was just freed of pods that are over."""
    pods = [_remnant(change, one) for one in left]
    Pod.objects.bulk_create(pods, batch_size=500)
    booked = [
        Booked(pod.pk, one.reservation.node_id, pod.spec, one.reservation.allocation)
        for pod, one in zip(pods, left, strict=True)
    ]
    change.book(booked, change.cluster.leader_epoch)


def _remnant(change: Change, one: Held) -> Pod:
    was = one.pod
    # It repels and attracts nobody, and stands for nobody's claim: only its room counts.
    shape = msgspec.structs.replace(
        was.spec.shape, affinity=(), anti_affinity=(), preferred_affinity=(), spread=(), claims=()
    )
    name = f"{was.name[:_NAME]}{MARK}{was.uid}"
    spec: PodSpec = msgspec.structs.replace(
        was.spec, name=name, shape=shape, labels={}, gang=None, controller="", preemptible=False
    )
    seconds = settings.HETSCHED_FORCED_HOLD_SECONDS
    pod = Pod.charged(change.cluster, spec, one.reservation.node_id, one.reservation.allocation, change.now)
    pod.origin, pod.not_before = Pod.REMNANT, change.now + timedelta(seconds=seconds)
    pod.message = f"{was.key} was deleted by force; its containers may still run, so its place is kept for a while"
    return pod


def end_remnants(cluster_id: int) -> int:
    """Let go what need not be kept any more; return how many remnants went."""
    now = timezone.now()
    rows = Pod.objects.filter(cluster_id=cluster_id, origin=Pod.REMNANT, state=State.RUNNING.value)
    due = rows.filter(not_before__lte=now)
    due.filter(node__gone=False, node__ready=False).update(
        not_before=now + timedelta(seconds=settings.HETSCHED_FORCED_HOLD_SECONDS)
    )
    if not due.exists() and not rows.filter(node__gone=True).exists():
        return 0
    with transaction.atomic():
        change = Change(advance(cluster_id))
        over = list((due | rows.filter(node__gone=True)).defer("spec").order_by("id"))
        change.free(over, "its containers must have ended")
        change.move(over, State.CANCELLED, queued=False, finished_at=change.now)
        change.requeue()
        change.close()
        dispatch.wake(cluster_id)
    return len(over)
