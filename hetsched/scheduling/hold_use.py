"""Assign the reserved capacity of holds to the pods of a batch.

For a pod whose submission claimed a hold, the hold's reservations are tried first, in this order: same name and
request, same request, same requested resources. If the request is the same, the pod receives exactly the reserved
allocation; otherwise the engine allocates resources of the same node to the pod. If no reservation fits (the node is
not ready or the pod requests more), the pod is scheduled like any other pod, and the reservation remains until the hold
ends.
Invariant: a reservation is assigned once; its row is released in the transaction that reserves the pod.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from hetsched.contracts.api.decision import NodeOutcome
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.placed_pod import PlacedPod
from hetsched.engine.explain.decision_matrix import best
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.outcome import Outcome
from hetsched.placement.cluster_snapshot import ClusterSnapshot
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod
from hetsched.placement.models.holds import MARK
from hetsched.placement.scheduling_queue.active_queue import PendingPod
from hetsched.placement.scheduling_result import ReservationUse

MAX_TRIED = 8  # number of reservations tried per pod: the reservations of a hold seldom differ


class HoldAssignment(msgspec.Struct, frozen=True):
    """The placement of a pod in a reservation; the best nodes in `top` need not include the reservation's node."""

    reservation: ReservationUse
    hold_id: str
    outcome: Outcome
    top: tuple[NodeOutcome, ...]


class BatchReservations:
    """The unused reservations of the holds that the submissions of a batch's pods claimed."""

    def __init__(self, snapshot: ClusterSnapshot, pending: Sequence[PendingPod]) -> None:
        self._snapshot = snapshot
        self._free: dict[str, dict[str, int]] = defaultdict(dict)  # hold ID -> key of the reserved row -> row ID
        holds = {pod.hold_id for pod in pending if pod.hold_id is not None}
        if holds:
            rows = Pod.objects.filter(hold_id__in=holds, origin=Pod.HELD, state=State.RUNNING.value).order_by("id")
            for pk, namespace, name, hold_id in rows.values_list("id", "namespace", "name", "hold_id"):
                self._free[hold_id][f"{namespace}/{name}"] = pk

    def assign(self, scheduler: Scheduler, pending: PendingPod, top_nodes: int) -> HoldAssignment | None:
        """Place a pod in a reservation of its hold; return None if it has no reservation or none fits."""
        pod, hold_id = pending.spec, pending.hold_id or ""
        free = self._free.get(hold_id)
        if not free or not pod.ready:
            return None
        state = self._snapshot.state
        reservations = [placed for key in free if (placed := state.placed_pods.get(key)) is not None]
        reservations = [reservation for reservation in reservations if reservation.pod.namespace == pod.namespace]
        for reservation in sorted(reservations, key=lambda reservation: _difference(pod, reservation))[:MAX_TRIED]:
            state.forget(reservation.pod.key)
            # A claim for extended resources has the name of its pod, so its devices are chosen again.
            is_same = reservation.pod.shape == pod.shape and not reservation.allocation.extended
            reserved = reservation.allocation if is_same else None
            top = best(scheduler, pod, top_nodes)
            outcome = scheduler.place_on(pod, reservation.row, reserved)
            if outcome.node is not None:
                return HoldAssignment(
                    ReservationUse(free.pop(reservation.pod.key), reservation.pod.key), hold_id, outcome, top
                )
            state.restore(reservation)
        return None


def _difference(pod: PodSpec, reservation: PlacedPod) -> tuple[bool, bool, bool]:
    """Return a sort key: how much a reservation differs from the pod's request."""
    holder = reservation.pod
    same = holder.shape == pod.shape
    return (
        not (same and holder.name.rpartition(MARK)[0] == pod.name),
        not same,
        (holder.shape.requests, holder.shape.gpu, holder.shape.numa)
        != (pod.shape.requests, pod.shape.gpu, pod.shape.numa),
    )
