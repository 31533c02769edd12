"""What a pod held of which nobody saw the end: kept until its containers must have ended.

Problem: a pod that is deleted by force is gone from the API server at once; its containers end when the kubelet gets to
it, if it can. Whoever gets its CPUs or cards before shares them with containers that nobody sees any more.
Rule: kubelets report an end before a pod goes. One that goes while its containers ran when it was last seen, or whose
going was noticed by its absence alone, leaves a remnant: a pod of ours alone, `NAME~UID`, which nobody can create, and
which holds on its node what the pod held. It is let go once its node was ready for `HETSCHED_FORCED_HOLD_SECONDS`, so
that the kubelet had that long to end what the API server has no more; by the clock of the database. A node that is
deleted may come back under its name with all that ran there; one that does not within `ANOTHER_MACHINE` is given up,
and what is kept on it with it.
Source: kubernetes/kubernetes#141471, "Force Delete StatefulSet Pods"; kubelets report terminal phases since 1.27.
Invariant: at every commit exactly one of the two holds it: the pod or its remnant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import Q

from hetsched.contracts.workload import PodSpec
from hetsched.inventory.ledger import advance
from hetsched.inventory.node_events import forget_gone
from hetsched.placement import dispatch
from hetsched.placement.bookings import Booked
from hetsched.placement.holds import MARK
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod, Reservation
from hetsched.storage.batches import parts
from hetsched.storage.snapshot_read import shared_now

from .change import Change

_NAME = 200  # characters of a pod's name that its remnant keeps
ANOTHER_MACHINE = timedelta(hours=24)
_STARTED = {State.BINDING, State.BOUND, State.RUNNING}  # a kubelet may have started it


class Held(msgspec.Struct, frozen=True):
    """What one pod holds that is about to be over, though its containers may run."""

    pod: Pod
    reservation: Reservation


def held_by(rows: Iterable[Pod]) -> list[Held]:
    """Return what those of these pods hold whose containers may run."""
    found = [row.pk for row in rows if State(row.state) in _STARTED]
    held = []
    for some in parts(found):
        reservations = Reservation.objects.filter(pod_id__in=some, active=True).select_related("pod").order_by("id")
        held += [Held(reservation.pod, reservation) for reservation in reservations]
    return held


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
    pod.origin, pod.not_before = Pod.REMNANT, change.shared_now + timedelta(seconds=seconds)
    pod.message = (
        f"{was.key} went before anybody saw its end; its containers may still run, so its place is kept for a while"
    )
    return pod


def end_remnants(cluster_id: int) -> int:
    """Let go what need not be kept any more; return how many remnants went."""
    now = shared_now()
    rows = Pod.objects.filter(cluster_id=cluster_id, origin=Pod.REMNANT, state=State.RUNNING.value)
    given_up = Q(node__gone=True, created_at__lte=now - ANOTHER_MACHINE)
    rows.filter(node__ready=False).exclude(given_up).update(
        not_before=now + timedelta(seconds=settings.HETSCHED_FORCED_HOLD_SECONDS)
    )
    due = rows.filter(Q(not_before__lte=now) | given_up)
    if not due.exists():
        return 0
    with transaction.atomic():
        change = Change(advance(cluster_id))
        over = list(due.defer("spec").order_by("id"))
        change.free(over, "its containers must have ended")
        change.move(over, State.CANCELLED, queued=False, finished_at=change.now)
        change.requeue()
        change.close()
        forget_gone(change.cluster)
        dispatch.wake(cluster_id)
    return len(over)
