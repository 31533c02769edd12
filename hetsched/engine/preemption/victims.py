"""Per-row index of the placed pods that may be preempted, updated incrementally.

Searching for victims pod by pod over all nodes costs more than a thousand decisions. Pods that may be preempted are
stored in slots per row, the least important first, with their amounts and priorities in arrays. `relieved` is the load
of every row without all of these pods, computed by the same code as the load of the state. The lower bound of the
eviction cost on each row is cached per shape. Only rows in the state's change log are read again. The caller's rule,
identified by a key, decides which pods may be preempted.
Invariants: the slots of a row are its placed pods that the rule allows to preempt; `relieved` equals the load of a
state from which these pods were removed, except for the rules between pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from hetsched.engine.cluster.charges import charge_amounts
from hetsched.engine.cluster.columns import Bools, Columns, Ints, Rows
from hetsched.engine.cluster.placed_pod import PlacedPod
from hetsched.engine.framework.request import CompiledShape

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState

SUM_OFFSET = 2**31  # added per pod to sums of priorities, so that fewer victims outweigh lower priorities
_EMPTY = 2**31
_NEWEST = 99999999999999
_KEPT = 16


def start_of(placed: PlacedPod) -> int:
    """Return a pod's creation time as a sortable number; a pod without one is treated as the newest."""
    return _number_of(placed.pod.created_at)


@lru_cache(maxsize=4096)  # times have a resolution of a second, and many pods are created together
def _number_of(created_at: str) -> int:
    digits = "".join(filter(str.isdigit, created_at))[:14]
    return int(digits.ljust(14, "0")) if digits else _NEWEST


def importance(placed: PlacedPod) -> tuple[int, int, str]:
    """Return a sort key with the most important pod first: high priority, then early start, then name."""
    return (-placed.pod.priority, start_of(placed), placed.pod.key)


class Bounds:
    """Lower bounds of the eviction cost for one shape, on every row; cached for one policy.

    All arrays have shape (N,): `possible` is True where the pod may fit if all preemptible pods are removed; `highest`
    is the highest priority of a victim, `total` the sum of the victims' priorities, `pods` their number, and `newest`
    the newest start.
    """

    __slots__ = ("highest", "newest", "owner", "pods", "possible", "seen", "total")

    def __init__(self, count: int, owner: object) -> None:
        self.owner = owner
        self.seen = -1
        self.possible: Bools = np.zeros(count, np.bool_)
        self.highest: Ints = np.zeros(count, np.int64)
        self.total: Ints = np.zeros(count, np.int64)
        self.pods: Ints = np.zeros(count, np.int64)
        self.newest: Ints = np.zeros(count, np.int64)

    def at(self, row: int) -> tuple[int, int, int, int, int]:
        """Return the bound of one row: highest priority, sum of priorities, number of pods, negated start, row."""
        return (int(self.highest[row]), int(self.total[row]), int(self.pods[row]), -int(self.newest[row]), row)

    def learn(self, row: int, cost: tuple[int, int, int, int] | None) -> None:
        """Record the actual eviction cost on a row, or that eviction does not help; valid until the row changes."""
        if cost is None:
            self.possible[row] = False
        else:
            self.highest[row], self.total[row], self.pods[row] = cost[:3]
            self.newest[row] = -cost[3]

    def cheapest_first(self) -> Iterator[int]:
        """Yield the possible rows, the lowest bound first."""
        rows = first = np.flatnonzero(self.possible)
        if not rows.size:
            return
        for values in (self.highest, self.total, self.pods, -self.newest):
            found = values[first]
            first = first[found == found.min()]
        yield int(first[0])
        keys = (-self.newest[rows], self.pods[rows], self.total[rows], self.highest[rows])
        yield from (row for row in rows[np.lexsort((rows, *keys))].tolist() if row != first[0])


class PreemptiblePods:
    """The pods of one state that one rule allows to preempt."""

    def __init__(self, state: ClusterState, is_evictable: Callable[[PlacedPod], bool]) -> None:
        self._is_evictable = is_evictable
        self._build(state)

    @staticmethod
    def of(state: ClusterState, key: tuple[object, ...], is_evictable: Callable[[PlacedPod], bool]) -> PreemptiblePods:
        """Return the index for the rule `key`, updated to the current state; the state caches the last few rules."""
        kept: dict[tuple[object, ...], PreemptiblePods] = state.derived.setdefault(PreemptiblePods, {})
        found = kept.pop(key, None)
        if found is None:
            found = PreemptiblePods(state, is_evictable)
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
        self.on_row: list[list[PlacedPod]] = [[] for _ in range(count)]
        self._slots = 1
        self._priority: Ints = np.full((1, count), _EMPTY, np.int64)
        self._amounts: Ints = np.zeros((1, columns.layout.resources, count), np.int64)
        self._start: Ints = np.zeros((1, count), np.int64)
        self._placed: list[dict[int, PlacedPod]] = [{} for _ in range(count)]
        self._changed: list[int] = []
        self._bounds: dict[tuple[int, int], Bounds] = {}
        for row in range(count):
            if state.on_row[row]:
                self._read(state, row)

    def _follow(self, state: ClusterState) -> None:
        if self._epoch != state.epoch:
            self._build(state)
            return
        # Skip rows whose pods were only removed for a trial and restored.
        changed = [row for row in set(state.log[self._seen :]) if self._placed[row].keys() != _by_id(state, row).keys()]
        self._changed.extend(changed)
        for row in changed:
            self.relieved.load[:, row] = state.columns.load[:, row]
            self._zones.copy_row(row, state.zones)
            self._read(state, row)
        self._seen = len(state.log)

    def _read(self, state: ClusterState, row: int) -> None:
        leaving = sorted(filter(self._is_evictable, state.on_row[row].values()), key=importance, reverse=True)
        self.on_row[row] = leaving
        self._placed[row] = _by_id(state, row)
        if len(leaving) > self._slots:
            self._widen(len(leaving))
        self._priority[:, row] = _EMPTY
        self._amounts[:, :, row] = 0
        requested = state.columns.layout.load["requested"]
        for slot, placed in enumerate(leaving):
            charge_amounts(placed, -1, self.relieved, self._zones)
            self._priority[slot, row] = placed.pod.priority
            self._start[slot, row] = start_of(placed)
            self._amounts[slot, :, row] = placed.compiled.delta[requested]

    def _widen(self, least: int) -> None:
        more = max(least, 2 * self._slots) - self._slots
        count = len(self.on_row)
        self._slots += more
        self._priority = np.concatenate([self._priority, np.full((more, count), _EMPTY, np.int64)])
        self._start = np.concatenate([self._start, np.zeros((more, count), np.int64)])
        self._amounts = np.concatenate([self._amounts, np.zeros((more, self._amounts.shape[1], count), np.int64)])

    def bounds(
        self,
        shape: CompiledShape,
        owner: object,
        possible: Callable[[Columns, Rows], Rows],
        short: Callable[[Rows], tuple[Rows, Ints]],
    ) -> Bounds:
        """Return lower bounds on the cost of making room for a shape in the current state.

        `possible` returns the rows on which a pod of the shape fits if all preemptible pods are removed. `short`
        returns the requested resources (k,) and how much the rows (n,) lack of them (k, n). Both belong to `owner`, a
        policy.
        """
        known = self._bounds.get((id(shape), id(owner)))
        if known is None:
            if len(self._bounds) >= _KEPT:
                self._bounds.clear()
            known = self._bounds[id(shape), id(owner)] = Bounds(len(self.on_row), (shape, owner))
        rows = np.flatnonzero(self._priority[0] != _EMPTY)
        if known.seen >= 0:
            changed = np.array(list(set(self._changed[known.seen :])), np.intp)
            known.possible[changed] = False
            rows = changed[self._priority[0, changed] != _EMPTY]
        known.seen = len(self._changed)
        rows = possible(self.relieved, rows) if rows.size else rows
        if rows.size:
            known.possible[rows] = True
            self._bound(known, rows, *short(rows))
        return known

    def _bound(self, known: Bounds, rows: Rows, resources: Rows, short: Ints) -> None:
        """Compute lower bounds for some rows. They never exceed the actual cost, even if other filters reject the pod.

        At least one pod is evicted. The bound of the highest priority is the priority at which the amounts, added from
        the lowest priority up, cover the shortfall. If the actual highest priority equals this bound, no pod with a
        higher priority is evicted. The number of victims is then at least the number of the largest amounts that cover
        the shortfall, and they include as many pods of that priority as are needed in addition to the pods below it.
        """
        priority = self._priority[:, rows]
        amounts = self._amounts[:, resources][:, :, rows]
        columns, slot = np.arange(len(rows)), np.zeros(len(rows), np.int64)
        for position, lacking in enumerate(short):
            enough = np.cumsum(amounts[:, position], axis=0) >= lacking
            slot = np.maximum(slot, np.where(enough[-1], enough.argmax(axis=0), 0))
        highest = priority[slot, columns]
        allowed = priority <= highest
        pods: Ints = np.ones(len(rows), np.int64)
        for position, lacking in enumerate(short):
            held = np.sort(np.where(allowed, -amounts[:, position], 0), axis=0)
            enough = np.cumsum(-held, axis=0) >= lacking
            pods = np.maximum(pods, np.where(enough[-1], enough.argmax(axis=0) + 1, 1))
        lowest = np.cumsum(priority, axis=0)
        others = np.where(pods > 1, lowest[np.maximum(pods - 2, 0), columns], 0)
        below = (priority < highest).sum(axis=0)
        known.highest[rows], known.pods[rows] = highest, pods
        known.newest[rows] = self._start[np.maximum(pods - 1, below), rows]
        known.total[rows] = SUM_OFFSET * pods + highest + others


def _by_id(state: ClusterState, row: int) -> dict[int, PlacedPod]:
    """Return the `PlacedPod` objects of a row by `id()`, so that a replaced object is detected."""
    return {id(placed): placed for placed in state.on_row[row].values()}
