"""Complete allocations: select the GPUs, zones and CPUs that the reservation of a pod does not name.

A pod that was reserved before its node's GPUs or CPU manager were known has no GPUs, zones or CPUs in its reservation.
`ClusterState.assume` selects them from the free ones of the row. A later allocation by the kubelet, or the removal of
another pod, can change the result of the selection. `complete` repeats the selection on every row that changed since
its last call: pods whose reservation names its resources come first, the others follow in the order of creation.
Invariant: after `complete`, equal reports and reservations give equal allocations, whatever the history.
"""

from __future__ import annotations

from collections import defaultdict

from hetsched.contracts.objects.allocation import Allocation
from hetsched.engine.framework.request import Request

from .placed_pod import PlacedPod
from .state import ClusterState


class CompletedAllocations:
    """Placed pods whose allocations the state completes, each with the allocation that was reserved for it."""

    def __init__(self) -> None:
        self._reserved: dict[str, tuple[PlacedPod, Allocation]] = {}
        self._seen = 0  # length of the state's log at the last call of `complete`

    def assume(self, state: ClusterState, request: Request, row: int, reserved: Allocation) -> PlacedPod:
        """Assume a pod with its allocation as reserved, and register it."""
        placed = state.assume(request, row, reserved)
        self.note(state, placed, reserved)
        return placed

    def note(self, state: ClusterState, placed: PlacedPod, reserved: Allocation) -> None:
        """Register a placed pod if `assume` may complete its allocation, now or after a later change of the row."""
        if state.completes(placed.compiled, placed.row, reserved):
            self._reserved[placed.pod.key] = (placed, reserved)

    def complete(self, state: ClusterState) -> None:
        """Repeat the selection on the rows that changed since the last call."""
        if self._reserved:
            # A log that is shorter than at the last call was restarted. It lacks some changed rows, so use all rows.
            changed = set(state.log[self._seen :]) if self._seen <= len(state.log) else set(range(len(state.reports)))
            by_row: defaultdict[int, list[tuple[PlacedPod, Allocation]]] = defaultdict(list)
            for key, (placed, reserved) in list(self._reserved.items()):
                if state.placed_pods.get(key) is not placed:
                    del self._reserved[key]  # the pod was removed since the last call
                elif placed.row in changed:
                    by_row[placed.row].append((placed, reserved))
            for row in sorted(by_row):
                self._complete_row(state, row, by_row[row])
        self._seen = len(state.log)

    def _complete_row(self, state: ClusterState, row: int, held: list[tuple[PlacedPod, Allocation]]) -> None:
        held.sort(key=lambda one: (one[0].pod.created_at, one[0].pod.key))
        for placed, _ in held:
            state.forget(placed.pod.key)
        for placed, reserved in held:
            self.assume(state, Request(placed.pod, placed.compiled), row, reserved)
