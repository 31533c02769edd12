"""Schedule many pods: in the compiled loop if it covers every formula, else in the scheduling cycle.

Both paths give the same result for the same policy and order. Pods are processed in the given order. One call of the
loop places a run of consecutive pods that the loop can place; any other pod ends the run and is scheduled by
`Scheduler.schedule`. The loop can place a pod if it covers the pod's shape (`plans`) and no inter-pod rule of a placed
pod, no gang and no quota applies to the pod. A pod that fits nowhere but could preempt others (PostFilter) also ends
the run and is scheduled by the cycle. If all pods with the same demand get the same allocation on all nodes of a kind,
the `reserve` of the plugin runs once for each pair of demand and kind of node
(`framework.compiled_terms.SharedReservation`).
Invariants: outcomes, allocations and state equal those of scheduling the pods one by one.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hetsched.contracts.api.decision import NodeOutcome
from hetsched.contracts.objects.allocation import EMPTY, Allocation, CardGrant
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.engine.cluster.columns import UNKNOWN, Ints
from hetsched.engine.cluster.placed_pod import PlacedPod, grant_card
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.compiled_terms import SharedReservation
from hetsched.engine.framework.cycle import Scheduler, merge_allocations
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.policy import Policy
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import Refusal

if TYPE_CHECKING:
    from .loop_arrays import BatchDecisions


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
        """Look up the demands of new shapes; `requests` are in the order of the positions of the shapes."""
        demands, of = self._demands, self._declared.demand
        ids = [demands.setdefault(of(request.shape), len(demands)) for request in requests]
        self._demand_of = np.concatenate([self._demand_of, np.array(ids, np.int64)])

    def of(self, requests: Sequence[Request], positions: Ints, rows: Ints) -> list[Allocation]:
        """Return the allocation of each pod, given the position of its shape and its row (-1: not placed)."""
        known = self._demand_of[positions] * self._most + self._kinds[rows]
        codes: list[int] = np.where(rows >= 0, known, UNKNOWN).tolist()
        for code in set(codes) - self._parts.keys():
            first = codes.index(code)
            part = self._plugin.reserve(requests[int(positions[first])], int(rows[first]), self._state)
            self._parts[code] = EMPTY if part is None or isinstance(part, Refusal) else part
        return [self._parts[code] for code in codes]


# Minimum number of pods for which loading the machine code, or compiling it if it cannot be cached, pays off. A run of
# fewer than _SHORT pods is not worth a call of the loop.
_MIN_PODS_TO_LOAD = 10_000
_MIN_PODS_TO_COMPILE = 200_000
_SHORT = 4
# `place_first` looks at most this many pods ahead, and at fewer after a pod that the loop could not place.
_MOST_AHEAD = 256
_MOST_BEST = 100
_MOST_SHAPES = 100_000
_MOST_KNOWN = 400_000
_LOG_ROOM = 1_000_000
_HIGHEST = 2**63 - 1


def covers(policy: Policy) -> bool:
    """Return whether the loop can place pods under a policy."""
    reserved = all(plugin.info.compiled_reserve is not None for plugin in policy.reserves)
    return reserved and all(plugin.selective for plugin in policy.permits)


class BatchScheduler:
    """Schedule batches with one scheduler's state and policy, and cache compiled shapes between batches.

    `expected` is the number of pods in all batches together. If it is small, the cycle schedules them, because it needs
    no machine code. `shortest` is the minimum length of a run that is passed to the loop. `ahead` is the number of pods
    at which the next call of `place_first` looks.
    """

    def __init__(self, scheduler: Scheduler, *, expected: int, shortest: int = _SHORT) -> None:
        self.scheduler = scheduler
        self._shortest = shortest
        self._possible = covers(scheduler.policy) and _is_worthwhile(expected)
        self.ahead = _MOST_AHEAD
        self._learnt: BatchCache | None = None

    def schedule(self, pods: Sequence[PodSpec]) -> list[Outcome]:
        """Decide and assume `pods` in the given order."""
        outcomes: list[Outcome] = []
        keys = [pod.key for pod in pods]
        if self._possible and self._placeable(keys):
            while len(outcomes) < len(pods):
                self._until_facts_change(pods[len(outcomes) :], keys[len(outcomes) :], outcomes)
        else:
            outcomes.extend(map(self.scheduler.schedule, pods))
        return outcomes

    def place_first(self, pods: Sequence[PodSpec], best: int) -> list[tuple[Outcome, tuple[NodeOutcome, ...]]]:
        """Decide and assume the first of these pods that the loop can place; the caller decides the next pod.

        Each outcome is returned with the `best` best nodes before the pod was placed. The result is empty if the cycle
        must decide the first pod.
        """
        if not self._possible or best > _MOST_BEST:
            return []
        run = list(pods[: self.ahead])
        placed = self.scheduler.state.placed_pods
        end = next((i for i, pod in enumerate(run) if pod.key in placed), len(run))
        decided = self._place_first(run[:end], best) if end >= self._shortest else []
        self.ahead = min(max(2 * len(decided), self._shortest), _MOST_AHEAD)
        return decided

    def _place_first(self, pods: list[PodSpec], best: int) -> list[tuple[Outcome, tuple[NodeOutcome, ...]]]:
        state = self.scheduler.state
        expecting = [state.experience.applied(pod) for pod in pods] if state.experience else pods
        positions = None
        while positions is None:  # a new resource widened the columns, which makes all cached shapes invalid
            learnt = self._current()
            positions = learnt.positions(expecting)
        unplaceable = np.flatnonzero(positions < 0)
        end = self._independent_pods(pods, 0, int(unplaceable[0]) if unplaceable.size else len(pods))
        if end < self._shortest:
            return []
        pods, keys = pods[:end], [pod.key for pod in pods[:end]]
        stops = np.ones(end, np.bool_)
        outcomes, decided = learnt.place(pods, expecting[:end], keys, positions[:end], stops, best)
        found = learnt.best_nodes(keys[: len(outcomes)], positions[: len(outcomes)], decided)
        return list(zip(outcomes, found, strict=True))

    def _placeable(self, keys: list[str]) -> bool:
        distinct = set(keys)
        return len(distinct) == len(keys) and self.scheduler.state.placed_pods.keys().isdisjoint(distinct)

    def _until_facts_change(self, pods: Sequence[PodSpec], keys: list[str], outcomes: list[Outcome]) -> None:
        """Schedule pods and append their outcomes, until all are scheduled or the cached shapes become invalid."""
        state = self.scheduler.state
        learnt = self._current()
        expecting = [state.experience.applied(pod) for pod in pods] if state.experience else pods
        positions = learnt.positions(expecting)
        if positions is None:
            return  # a new resource widened the columns, so the caller retries with a new cache
        stops = learnt.stops(pods)
        ends = [*np.flatnonzero(positions < 0).tolist(), len(pods)]
        start = 0
        while start < len(pods):
            end = self._independent_pods(pods, start, ends[bisect_left(ends, start)])
            if end - start >= self._shortest:
                run = slice(start, end)
                decided, _ = learnt.place(pods[run], expecting[run], keys[run], positions[run], stops[run])
                outcomes += decided
                start += len(decided)
                end = start + 1  # the pod that ended the run
            for pod in pods[start : max(end, start + 1)]:
                outcomes.append(self.scheduler.schedule(pod))
                start += 1
                if state.epoch != learnt.plans.epoch:
                    return

    def _independent_pods(self, pods: Sequence[PodSpec], start: int, end: int) -> int:
        """Return the end of the run from `start`: the first pod that a rule of a placed pod selects, or `end`."""
        state = self.scheduler.state
        rules = state.neighbours
        stated = [group for group in (rules.repelling, rules.attracting, rules.preferring) if group]
        if not stated:
            return end
        selected = (
            i for i in range(start, end) if any(rules.terms_selecting(group, pods[i], state) for group in stated)
        )
        return next(selected, end)

    def _current(self) -> BatchCache:
        learnt, state = self._learnt, self.scheduler.state
        if learnt is None or learnt.plans.epoch != state.epoch or learnt.is_full:
            learnt = self._learnt = BatchCache(self.scheduler)
        return learnt


class BatchCache:
    """Cache for one epoch of the state: shapes, and parts of allocations that many pods share."""

    def __init__(self, scheduler: Scheduler) -> None:
        from . import best_nodes, kernel, loop_arrays, plans  # machine code: loaded on first use by a batch

        policy = scheduler.policy
        self._arrays, self._best = loop_arrays, best_nodes
        self._loop = kernel.loop_of(policy.formulas)
        self.scheduler = scheduler
        self.plans = plans.Plans(scheduler.state, policy, scheduler.evaluator, self._loop.codes)
        self._position: dict[int, int] = {}
        self._of_compiled: dict[int, int] = {}
        self._shapes: list[Shape] = []  # keeps the shapes alive, so that their `id()` values are not reused
        self._grants: dict[tuple[int, int, int, int], CardGrant] = {}
        self._log: Ints = np.zeros(0, np.int64)
        self._logged = 0
        self._synced = len(scheduler.state.log)
        self._evicts_lower = all(plugin.info.evicts_lower_priority for plugin in policy.post_filters)
        self._lowest = min((b.pod.priority for b in scheduler.state.placed_pods.values()), default=_HIGHEST)
        self._handling = [plugin.handled_pods for plugin in policy.plugins if plugin.handled_pods is not None]
        self._shared = [
            SharedAllocations(plugin.instance, plugin.info.compiled_reserve, scheduler.state)
            for plugin in policy.reserves
            if isinstance(plugin.info.compiled_reserve, SharedReservation)
        ]

    @property
    def is_full(self) -> bool:
        return self.plans.full or len(self.plans.requests) > _MOST_SHAPES or len(self._position) > _MOST_KNOWN

    # -- shapes --------------------------------------------------------------------------------------------------

    def positions(self, pods: Sequence[PodSpec]) -> Ints | None:
        """Return an array of length P: the position of each pod's shape, or -1 for a pod that the loop cannot place.

        The result is None if compiling a pod changed the layout, which makes all cached shapes invalid.
        """
        known, before = self._position, len(self.plans.requests)
        position_of = [known.get(id(pod.shape), -1) for pod in pods]
        if -1 in position_of:
            missing = {id(pod.shape): pod for pod, at in zip(pods, position_of, strict=True) if at == -1 and pod.ready}
            if missing and not self._learn(list(missing.values())):
                return None
            position_of = [known.get(id(pod.shape), -1) for pod in pods]
        left = [i for i, pod in enumerate(pods) if not pod.ready or pod.gang is not None]
        for handled_pods in self._handling:
            handles = handled_pods(self.scheduler.state)
            if handles is not None:
                left += [i for i, pod in enumerate(pods) if handles(pod)]
        found = np.array(position_of, np.int64)
        if left:
            found[left] = -1
        shapes = self.plans.shapes
        if shapes.kind.size:
            found[shapes.kind[found] < 0] = -1
            self._keep_recurring(found[(found >= 0) & (shapes.slot[found] < 0)], before)
        return found

    def _keep_recurring(self, positions: Ints, before: int) -> None:
        """Cache the totals of shapes that several of these pods have, and of shapes of an earlier batch.

        `positions` are those of the pods whose totals are not cached; those below `before` belong to earlier batches.
        """
        if not positions.size:
            return
        counts = np.bincount(positions)
        counts[:before] *= 2
        for position in np.flatnonzero(counts > 1).tolist():
            self.plans.keep(position)

    def stops(self, pods: Sequence[PodSpec]) -> NDArray[np.bool_]:
        """Return the (P,) mask of pods that the cycle schedules if they fit nowhere: they could preempt others."""
        if not self._evicts_lower:
            return np.ones(len(pods), np.bool_)
        if not self.scheduler.policy.post_filters:
            return np.zeros(len(pods), np.bool_)
        self._note_priorities(self.scheduler.state.log[self._synced :])
        priorities = [pod.priority for pod in pods]
        lowest = self._lowest = min(self._lowest, *priorities)
        if max(priorities) == lowest:
            return np.zeros(len(pods), np.bool_)
        return np.array([pod.priority > lowest and pod.preempts for pod in pods], np.bool_)

    def _note_priorities(self, rows: Iterable[int]) -> None:
        """Include the pods on `rows` in the lowest priority of placed pods; removals do not raise it again."""
        on_row = self.scheduler.state.on_row
        for row in set(rows):
            self._lowest = min([self._lowest, *[placed.pod.priority for placed in on_row[row].values()]])

    def _learn(self, pods: list[PodSpec]) -> bool:
        state, plans = self.scheduler.state, self.plans
        requests = [state.compile(pod) for pod in pods]
        if state.epoch != plans.epoch:
            return False
        fresh: dict[int, Request] = {}
        for pod, request in zip(pods, requests, strict=True):
            compiled = id(request.compiled)
            if compiled not in self._of_compiled:
                self._of_compiled[compiled] = len(plans.requests) + len(fresh)
                fresh[compiled] = request
            self._position[id(pod.shape)] = self._of_compiled[compiled]
            self._shapes.append(pod.shape)
        if fresh:
            plans.learn(list(fresh.values()))
            for shared in self._shared:
                shared.learn(fresh.values())
        return True

    # -- placing a run -------------------------------------------------------------------------------------------

    def place(
        self,
        pods: Sequence[PodSpec],
        expecting: Sequence[PodSpec],
        keys: list[str],
        positions: Ints,
        stops: NDArray[np.bool_],
        best: int = 0,
    ) -> tuple[list[Outcome], BatchDecisions]:
        """Decide and assume a run of pods, up to the first pod that fits nowhere and is left to the cycle.

        `expecting` are the same pods with their learnt expected use; the state assumes these. The result includes the
        output of the loop, with the `best` best rows of each pod.
        """
        state, policy, plans = self.scheduler.state, self.scheduler.policy, self.plans
        self._sync_log(len(pods))
        ties = policy.spec.ties
        draws = _draws(ties.seed, keys) if ties.by == "random" else np.zeros(0, np.uint64)
        decided = self._arrays.no_decisions(len(pods), best, len(plans.terms.weight))
        count, self._logged = self._loop.place(
            positions, stops, draws, state.columns.static, state.columns.load, plans.at, plans.terms, plans.kinds,
            plans.shapes, plans.kept, plans.values, plans.scratch, self._log, self._logged, decided,
        )  # fmt: skip
        positions, row_of, cards = positions[:count], decided.row[:count], decided.cards[:count]
        sums = np.array(plans.weight_sums)[plans.shapes.variant[positions]]
        scores = np.divide(decided.total[:count], sums, out=np.zeros(count), where=sums != 0.0).tolist()
        rows, names = row_of.tolist(), state.columns.names
        allocations = self._allocations(positions, row_of, cards)
        known, of_shape = plans.requests, positions.tolist()
        outcomes = [
            Outcome(pod, names[row], row, allocation, score) if row >= 0 else Outcome(pod)
            for pod, row, allocation, score in zip(pods, rows, allocations, scores, strict=False)
        ]
        placed = [
            PlacedPod(pod, known[position].compiled, row, allocation)
            for pod, position, row, allocation in zip(expecting, of_shape, rows, allocations, strict=False)
            if row >= 0
        ]
        state.adopt([key for key, row in zip(keys, rows, strict=False) if row >= 0], placed)
        self._synced = len(state.log)
        return outcomes, decided

    def best_nodes(self, keys: list[str], positions: Ints, decided: BatchDecisions) -> list[tuple[NodeOutcome, ...]]:
        """Return the best nodes of pods that `place` decided."""
        return self._best.best_nodes(self.plans, keys, positions, decided)

    def _sync_log(self, room: int) -> None:
        """Add the rows that were changed outside the loop to the loop's log, and reserve space for `room` more rows."""
        missed = self.scheduler.state.log[self._synced :]
        if self._logged + len(missed) > _LOG_ROOM:
            self._logged = 0
            self.plans.kept.seen[:] = self.plans.values.seen[:] = UNKNOWN
            missed = []
        needed = self._logged + len(missed) + room
        if len(self._log) < needed:
            self._log = np.concatenate([self._log, np.zeros(needed, np.int64)])
        self._log[self._logged : self._logged + len(missed)] = missed
        self._logged += len(missed)

    def _allocations(self, positions: Ints, rows: Ints, cards: Ints) -> list[Allocation]:
        """Return the allocation of each pod; `cards` (P,) holds the GPUs that the loop selected, as bit sets."""
        allocations = [EMPTY] * len(rows)
        for number, shared in enumerate(self._shared):
            parts = shared.of(self.plans.requests, positions, rows)
            allocations = parts if number == 0 else list(map(merge_allocations, allocations, parts))
        for i in np.flatnonzero(cards).tolist():
            grants = self._cards(int(positions[i]), int(rows[i]), int(cards[i]))
            allocations[i] = msgspec.structs.replace(allocations[i], gpus=grants)
        return allocations

    def _cards(self, position: int, row: int, bits: int) -> tuple[CardGrant, ...]:
        shapes = self.plans.shapes
        asked = shapes.card[position]
        milli, memory = int(shapes.cards.milli[asked]), int(shapes.cards.memory[asked])
        grants = []
        for card in self.scheduler.state.cards[row]:
            if bits >> card.index & 1:
                key = (row, card.index, milli, memory)
                grant = self._grants.get(key)
                if grant is None:
                    grant = self._grants[key] = grant_card(card, milli, memory)
                grants.append(grant)
        return tuple(grants)


def _is_worthwhile(expected: int) -> bool:
    """Return whether `expected` pods justify machine code, which takes about a second to load."""
    if expected < _MIN_PODS_TO_LOAD and "hetsched.engine.compiled.kernel" not in sys.modules:
        return False
    from hetsched.engine.jit import HAS_NUMBA

    if not HAS_NUMBA:
        return False
    from . import kernel

    return kernel.KEPT or expected >= _MIN_PODS_TO_COMPILE


def _draws(seed: int, keys: list[str]) -> NDArray[np.uint64]:
    digests = (blake2b(f"{seed}/{key}".encode(), digest_size=8).digest() for key in keys)
    return np.array([int.from_bytes(digest) for digest in digests], np.uint64)
