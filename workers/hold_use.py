"""Give pods the room that is held for them, within one batch.

Rule: a pod whose submission claimed a hold is tried in one of its rooms first, the likest first: of its own name and
request, then of its request, then of what it asks for. There it gets just what is held, where it asks for the same;
else whatever of that node it needs. If no room takes it (its node is not ready, it asks for more) it is decided like
any other pod, and the room stays until the hold ends.
Invariant: a room is given once; the row of it is freed in the transaction that books the pod.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from hetsched.contracts.decision import NodeOutcome
from hetsched.contracts.workload import PodSpec
from hetsched.engine.cluster.booking import Booking
from hetsched.engine.explain.diagnosis import best
from hetsched.engine.framework.cycle import Outcome, Scheduler
from hetsched.placement.actions import GivenRoom
from hetsched.placement.holds import MARK
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod
from hetsched.placement.queue import Waiting
from hetsched.placement.snapshot import Loaded

MOST_TRIED = 8  # rooms for one pod: those of one hold are seldom different


class Given(msgspec.Struct, frozen=True):
    """A room and the pod in it; `top` are the best nodes, the one of the room among them or not."""

    room: GivenRoom
    hold_id: str
    outcome: Outcome
    top: tuple[NodeOutcome, ...]


class Rooms:
    """The rooms that the pods of one batch may get."""

    def __init__(self, loaded: Loaded, waiting: Sequence[Waiting]) -> None:
        self._loaded = loaded
        self._free: dict[str, dict[str, int]] = defaultdict(dict)  # hold -> key -> row
        holds = {pod.hold_id for pod in waiting if pod.hold_id is not None}
        if holds:
            rows = Pod.objects.filter(hold_id__in=holds, origin=Pod.HELD, state=State.RUNNING.value).order_by("id")
            for pk, namespace, name, hold_id in rows.values_list("id", "namespace", "name", "hold_id"):
                self._free[hold_id][f"{namespace}/{name}"] = pk

    def give(self, scheduler: Scheduler, waiting: Waiting, top_nodes: int) -> Given | None:
        """Place a pod in a room that is held for it; None where it has none, or none takes it."""
        pod, hold_id = waiting.spec, waiting.hold_id or ""
        free = self._free.get(hold_id)
        if not free or not pod.ready:
            return None
        state = self._loaded.state
        rooms = [booking for key in free if (booking := state.bookings.get(key)) is not None]
        rooms = [room for room in rooms if room.pod.namespace == pod.namespace]
        for room in sorted(rooms, key=lambda room: _unlike(pod, room))[:MOST_TRIED]:
            state.forget(room.pod.key)
            kept = room.allocation if room.pod.shape == pod.shape else None
            top = best(scheduler, pod, top_nodes)
            outcome = scheduler.place_on(pod, room.row, kept)
            if outcome.node is not None:
                return Given(GivenRoom(free.pop(room.pod.key), room.pod.key), hold_id, outcome, top)
            state.restore(room)
        return None


def _unlike(pod: PodSpec, room: Booking) -> tuple[bool, bool, bool]:
    """Rank a room by how much it differs from what a pod needs."""
    held = room.pod
    same = held.shape == pod.shape
    return (
        not (same and held.name.rpartition(MARK)[0] == pod.name),
        not same,
        (held.shape.requests, held.shape.gpu, held.shape.numa) != (pod.shape.requests, pod.shape.gpu, pod.shape.numa),
    )
