"""Nominations within one batch: who is booked beside his victims, and whether that still makes sense.

Rule: on a live cluster the engine places a pod as if its victims had left; here they are put back beside it, and the
pod waits. When its turn comes again it is taken off first. While some of its victims are still there, and it could
still run on its node without them, it asks nobody else to leave: it takes a place that is free by now, or goes on
waiting. Else it is decided like any other pod. A nominated pod that has to give way to a more important one is no
victim: nobody has to be asked, it is just not meant for that node any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetsched.contracts.decision import Evicted, Reason
from hetsched.contracts.workload import PodSpec
from hetsched.engine.cluster.booking import Booking
from hetsched.engine.framework.cycle import Outcome, Scheduler
from hetsched.engine.framework.post_filter import Attempt
from hetsched.placement.actions import Nominated
from hetsched.placement.snapshot import Loaded, Nominee

_MOST_NAMED = 5


class Nominees:
    """The nominated pods of a warm state, for the time of one batch."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    def take_off(self, pod: PodSpec) -> tuple[Nominee, Booking] | None:
        """Take a nominated pod off the state, because its turn has come."""
        nominee = self._loaded.nominees.pop(pod.key, None)
        booking = None if nominee is None else self._loaded.state.forget(pod.key)
        return None if nominee is None or booking is None else (nominee, booking)

    def put_back(self, nominee: Nominee, booking: Booking) -> Nominated:
        """Let a pod that was taken off go on waiting for its node."""
        self._loaded.state.restore(booking)
        self._loaded.nominees[booking.pod.key] = nominee
        return Nominated(self._loaded.node_ids[nominee.node], nominee.node, booking.allocation)

    def left_to_go(self, nominee: Nominee) -> list[Booking]:
        """Return those who have to leave for a pod and have not."""
        bookings = self._loaded.state.bookings
        return [bookings[key] for key, uid in sorted(nominee.victims) if _is_booked(bookings.get(key), uid)]

    def comes_true(self, scheduler: Scheduler, pod: PodSpec, nominee: Nominee, going: Sequence[Booking]) -> bool:
        """Tell whether a pod that is off the state could run on its node without those who are still to go."""
        state = self._loaded.state
        row = state.row_of.get(nominee.node)
        if row is None:
            return False
        for booking in going:
            state.forget(booking.pod.key)
        try:
            return Attempt(scheduler, state.compile(pod)).fits(row)
        finally:
            for booking in going:
                state.restore(booking)

    def settle(self, outcome: Outcome, evicted: Sequence[Evicted]) -> tuple[Nominated | None, tuple[str, ...]]:
        """Put the victims of a placement back, but for those that only were nominated.

        Returns what the pod is nominated for, None where nobody has to be asked, and the pods that gave way.
        """
        loaded, state = self._loaded, self._loaded.state
        keys = {one.pod for one in evicted}
        left = [booking.pod.key for booking in outcome.evicted]
        gave_way = tuple(key for key in left if loaded.nominees.pop(key, None) is not None)
        staying = [booking for booking in outcome.evicted if booking.pod.key in keys.difference(gave_way)]
        outcome.evicted = ()  # nobody is to put them back a second time
        if not staying:
            return None, gave_way
        for booking in staying:
            state.restore(booking)
        assert outcome.node is not None
        victims = frozenset((booking.pod.key, booking.pod.uid) for booking in staying)
        loaded.nominees[outcome.pod.key] = Nominee(outcome.node, victims)
        return Nominated(loaded.node_ids[outcome.node], outcome.node, outcome.allocation), gave_way


def waits_for(node: str, going: Sequence[Booking]) -> Reason:
    """Say for whose leaving a nominated pod waits."""
    named = ", ".join(f"{one.pod.key} (priority {one.pod.priority})" for one in going[:_MOST_NAMED])
    more = f" and {len(going) - _MOST_NAMED} more" if going[_MOST_NAMED:] else ""
    return Reason("PreemptionPending", "preemption", 1, f"it gets its place on {node} once {named}{more} left")


def was_refused(victim: str, message: str) -> Reason:
    """Say that a pod that could make room stays."""
    return Reason("PreemptionRefused", "preemption", 0, f"{victim} stays: {message}")


def _is_booked(booking: Booking | None, uid: str) -> bool:
    return booking is not None and booking.pod.uid == uid
