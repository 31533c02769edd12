"""Completed allocations: GPUs, zones and CPUs that a state adds to bookings which do not name them.

A pod that was reserved before its node's GPUs or CPU manager were known names none of them; `ClusterState.assume`
selects them on the row as it is then. A later grant of the kubelet or the end of another pod would lead to another
selection. `complete` therefore repeats the selection on every row that changed since its last call, after all bookings
that name their resources and in the order of creation.
Invariant: after `complete`, equal reports and bookings give equal allocations, whatever the history.
"""

from __future__ import annotations

from collections import defaultdict

from hetsched.contracts.objects.allocation import Allocation
from hetsched.engine.framework.request import Request

from .booking import Booking
from .state import ClusterState


class CompletedAllocations:
    """The bookings of one state whose allocations it completes, with the allocations as reserved."""

    def __init__(self) -> None:
        self._reserved: dict[str, tuple[Booking, Allocation]] = {}
        self._seen = 0  # length of the state's log at the last call of `complete`

    def assume(self, state: ClusterState, request: Request, row: int, reserved: Allocation) -> Booking:
        """Book a pod with its allocation as reserved."""
        booking = state.assume(request, row, reserved)
        self.note(state, booking, reserved)
        return booking

    def note(self, state: ClusterState, booking: Booking, reserved: Allocation) -> None:
        """Register a booking whose allocation was completed, or may be on a later content of its row."""
        if state.completes(booking.compiled, booking.row, reserved):
            self._reserved[booking.pod.key] = (booking, reserved)

    def complete(self, state: ClusterState) -> None:
        """Repeat the selection on the rows that changed since the last call."""
        if self._reserved:
            # A shorter log was restarted: it no longer names all changed rows.
            changed = set(state.log[self._seen :]) if self._seen <= len(state.log) else set(range(len(state.reports)))
            by_row: defaultdict[int, list[tuple[Booking, Allocation]]] = defaultdict(list)
            for key, (booking, reserved) in list(self._reserved.items()):
                if state.bookings.get(key) is not booking:
                    del self._reserved[key]  # released since
                elif booking.row in changed:
                    by_row[booking.row].append((booking, reserved))
            for row in sorted(by_row):
                self._complete_row(state, row, by_row[row])
        self._seen = len(state.log)

    def _complete_row(self, state: ClusterState, row: int, held: list[tuple[Booking, Allocation]]) -> None:
        held.sort(key=lambda one: (one[0].pod.created_at, one[0].pod.key))
        for booking, _ in held:
            state.forget(booking.pod.key)
        for booking, reserved in held:
            self.assume(state, Request(booking.pod, booking.compiled), row, reserved)
