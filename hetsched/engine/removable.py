"""Which booked pods could leave for a newcomer, row by row, kept up to date.

Problem: looking for victims pod by pod over all nodes costs more than a thousand decisions.
Rule: pods that may leave stand in slots per row, the lowest priority first; their amounts and priorities are arrays,
and `relieved` is the load of every row with all of them gone, charged by the ledger's own arithmetic. Only rows in the
ledger's log are read again. What may leave is said by the caller's rule, under a key that names it.
Invariants: the slots of a row are its bookings for which the rule holds; `relieved` equals a ledger that forgot them,
without the rules between pods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .columns import Columns, Ints, Rows
from .state import Booking, charge_amounts

if TYPE_CHECKING:
    from .state import ClusterState

SUM_OFFSET = 2**31  # added per pod to sums of priorities, so that fewer pods go before lower ones
_NOBODY = 2**31
_NEWEST = 99999999999999
_KEPT = 16


def start_of(booking: Booking) -> int:
    """Return when a pod was made as a sortable number; one that nobody dated counts as the newest."""
    digits = "".join(filter(str.isdigit, booking.pod.created_at))[:14]
    return int(digits.ljust(14, "0")) if digits else _NEWEST


def importance(booking: Booking) -> tuple[int, int, str]:
    """Order pods, the most important first: high priority, then long running, then name."""
    return (-booking.pod.priority, start_of(booking), booking.pod.key)


class Bounds(NamedTuple):
    """What evicting on each of n rows costs at least: highest priority, sum, pods and the latest start (n,)."""

    rows: Rows
    highest: Ints
    total: Ints
    pods: Ints
    newest: Ints


class Removable:
    """The pods of one state that one rule lets leave."""

    def __init__(self, state: ClusterState, may_leave: Callable[[Booking], bool]) -> None:
        self._may_leave = may_leave
        self._build(state)

    @staticmethod
    def of(state: ClusterState, key: tuple[object, ...], may_leave: Callable[[Booking], bool]) -> Removable:
        """Return what the rule `key` lets leave, as the state is now; the last few rules are kept with the state."""
        kept: dict[tuple[object, ...], Removable] = state.derived.setdefault(Removable, {})
        found = kept.pop(key, None)
        if found is None:
            found = Removable(state, may_leave)
        else:
            found._follow(state)
        kept[key] = found
        if len(kept) > _KEPT:
            del kept[next(iter(kept))]
        return found

    def _build(self, state: ClusterState) -> None:
        count = len(state.reports)
        self._epoch, self._seen = state.epoch, len(state.log)
        columns = state.columns
        self.relieved = Columns(columns.names, columns.layout, columns.static, columns.load.copy())
        self._zones = state.zones.copy()
        self.on_row: list[list[Booking]] = [[] for _ in range(count)]
        self._slots = 1
        self._priority: Ints = np.full((1, count), _NOBODY, np.int64)
        self._amounts: Ints = np.zeros((1, columns.layout.resources, count), np.int64)
        self._newest: Ints = np.zeros(count, np.int64)
        for row in range(count):
            if state.on_row[row]:
                self._read(state, row)

    def _follow(self, state: ClusterState) -> None:
        if self._epoch != state.epoch:
            self._build(state)
            return
        for row in set(state.log[self._seen :]):
            self.relieved.load[:, row] = state.columns.load[:, row]
            self._zones.held.pop(row, None)
            if row in state.zones.held:
                self._zones.held[row] = dict(state.zones.held[row])
            self._read(state, row)
        self._seen = len(state.log)

    def _read(self, state: ClusterState, row: int) -> None:
        leaving = sorted(filter(self._may_leave, state.on_row[row].values()), key=importance, reverse=True)
        self.on_row[row] = leaving
        if len(leaving) > self._slots:
            self._widen(len(leaving))
        self._priority[:, row] = _NOBODY
        self._amounts[:, :, row] = 0
        requested = state.columns.layout.load["requested"]
        for slot, booking in enumerate(leaving):
            charge_amounts(booking, -1, self.relieved, self._zones)
            self._priority[slot, row] = booking.pod.priority
            self._amounts[slot, :, row] = booking.compiled.delta[requested]
        self._newest[row] = max(map(start_of, leaving), default=0)

    def _widen(self, least: int) -> None:
        more = max(least, 2 * self._slots) - self._slots
        count = len(self.on_row)
        self._slots += more
        self._priority = np.concatenate([self._priority, np.full((more, count), _NOBODY, np.int64)])
        self._amounts = np.concatenate([self._amounts, np.zeros((more, self._amounts.shape[1], count), np.int64)])

    def rows(self) -> Rows:
        """Return the rows where anybody could leave."""
        return np.flatnonzero(self._priority[0] != _NOBODY)

    def bounds(self, rows: Rows, short: Ints, resources: Rows) -> Bounds:
        """Return what it costs at least to free `short` (k, n) of `resources` (k,) on each of `rows` (n,).

        Never too high, whatever else keeps the pod off: at least one pod leaves, at least so many that the largest
        amounts add up to what is short, and at least one of the priority at which the lowest ones add up to it.
        """
        priority = self._priority[:, rows]
        amounts = self._amounts[:, resources][:, :, rows]
        count: Ints = np.ones(len(rows), np.int64)
        slot: Ints = np.zeros(len(rows), np.int64)
        for position, lacking in enumerate(short):
            held = amounts[:, position]
            upwards = np.cumsum(held, axis=0) >= lacking
            largest = np.cumsum(-np.sort(-held, axis=0), axis=0) >= lacking
            enough = upwards[-1]
            slot = np.maximum(slot, np.where(enough, upwards.argmax(axis=0), self._slots - 1))
            count = np.maximum(count, np.where(enough, largest.argmax(axis=0) + 1, 1))
        columns = np.arange(len(rows))
        highest = np.minimum(priority[slot, columns], _NOBODY)
        lowest = np.cumsum(priority, axis=0)
        others = np.where(count > 1, lowest[np.maximum(count - 2, 0), columns], 0)
        return Bounds(rows, highest, SUM_OFFSET * count + highest + others, count, self._newest[rows])
