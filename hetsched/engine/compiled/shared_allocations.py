"""Allocations that all pods of one demand share on all nodes of one kind, by one Reserve plugin.

`reserve` runs once for each pair of demand and kind of node (`framework.compiled_terms.SharedReservation`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from hetsched.contracts.objects.allocation import EMPTY, Allocation
from hetsched.engine.cluster.columns import UNKNOWN, Ints
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.compiled_terms import SharedReservation
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import Refusal


class SharedAllocations:
    """Cache of one plugin's allocations for one epoch of a state."""

    def __init__(self, plugin: Any, declared: SharedReservation, state: ClusterState) -> None:
        self._plugin = plugin
        self._declared = declared
        self._state = state
        kinds = state.all_rows.static(declared.field)
        self._kinds: Ints = kinds - kinds.min(initial=0)
        self._most = int(self._kinds.max(initial=0)) + 1
        self._demands: dict[Hashable, int] = {}
        self._demand_of: Ints = np.zeros(0, np.int64)
        self._parts: dict[int, Allocation] = {UNKNOWN: EMPTY}

    def learn(self, requests: Iterable[Request]) -> None:
        """Append shapes, in the order of their positions."""
        demands, of = self._demands, self._declared.demand
        ids = [demands.setdefault(of(request.shape), len(demands)) for request in requests]
        self._demand_of = np.concatenate([self._demand_of, np.array(ids, np.int64)])

    def of(self, requests: Sequence[Request], positions: Ints, rows: Ints) -> list[Allocation]:
        """Return the allocations of pods by the positions of their shapes and their rows, -1 for none."""
        known = self._demand_of[positions] * self._most + self._kinds[rows]
        codes: list[int] = np.where(rows >= 0, known, UNKNOWN).tolist()
        for code in set(codes) - self._parts.keys():
            first = codes.index(code)
            part = self._plugin.reserve(requests[int(positions[first])], int(rows[first]), self._state)
            self._parts[code] = EMPTY if part is None or isinstance(part, Refusal) else part
        return [self._parts[code] for code in codes]
