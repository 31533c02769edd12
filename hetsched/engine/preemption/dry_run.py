"""Preemption: find the smallest set of victims of lowest priority on one node, so that a pod fits.

Per node, as in kube-scheduler: remove all pods that may be preempted; if the pod then fits, reprieve them one by one,
the most important first, each only if the pod then still fits. The remaining victims are a minimal set: none of them
can be reprieved. Pods whose eviction would violate a disruption budget are reprieved before all others. A second order,
gangs first and then small pods before large ones of the same priority, is tried too, because it often needs fewer
victims.

The best node and order has the smallest cost. The cost consists of these values, compared in this order:
    1 victims that violate a disruption budget    2 highest priority of a victim
    3 sum of priorities + 2^31 per victim, so effectively fewer victims, then lower ones     4 number of victims
    5 run time of the longest-running victim of highest priority      6 node name
`bounds` gives a lower bound of each node's cost. Nodes are examined in the order of their bounds, until no bound is
lower than the best result, or `most_nodes` were examined. If a result depends on its node alone, it is cached until
the node changes.

A gang is preempted as a whole: a member is only evicted together with all placed members on all nodes, and every member
counts as a victim. Running members of a gang with the disruption mode Single are separate victims.

Source: kube-scheduler's DefaultPreemption and `pickOneNodeForPreemption`; scheduler-plugins for gangs and quotas.
Invariants: the cluster state is unchanged afterwards; every filter of the policy accepts the pod, and its exact GPUs
and CPUs can be reserved, if all victims are removed, but not if one of them remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from hetsched.contracts.units import GPU_RESOURCES
from hetsched.engine.cluster.columns import Ints, Rows
from hetsched.engine.cluster.disruption import evictions_left, matcher
from hetsched.engine.cluster.placed_pod import PlacedPod
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.gangs import Gangs, gang_key, preempted_whole
from hetsched.engine.framework.post_filter import Attempt
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import Eviction

from .victims import SUM_OFFSET, PreemptiblePods, importance, start_of

Unit = tuple[PlacedPod, ...]  # pods that are evicted together
Cost = tuple[int, int, int, int, int, int]


class Rule(NamedTuple):
    """Rule for the pods that may be preempted.

    `is_evictable` depends on the pod alone. `while_`, if given, must also be true; it depends on the remaining pods and
    may become false when other pods are removed. `key` identifies the rule.
    """

    key: tuple[object, ...]
    is_evictable: Callable[[PlacedPod], bool]
    while_: Callable[[PlacedPod], bool] | None = None


class Choice(NamedTuple):
    """Victims on one row and their cost."""

    cost: Cost
    row: int
    victims: tuple[PlacedPod, ...]
    broken: dict[str, str]  # pod key -> the disruption budget that its eviction violates


class VictimSearch:
    """Search for the victims of a refused request; with `counts_amounts`, requests must fit allocatable amounts."""

    def __init__(
        self, attempt: Attempt, request: Request, state: ClusterState, rule: Rule, *, counts_amounts: bool
    ) -> None:
        self.attempt = attempt
        self.request = request
        self.state = state
        self.rule = rule
        self.counts_amounts = counts_amounts
        self._evictions_left = {budget: evictions_left(budget, state) for budget in state.budgets}

    def best(self, most_nodes: int) -> Eviction | None:
        """Return the cheapest eviction, or None if no eviction helps."""
        removable = PreemptiblePods.of(self.state, self.rule.key, self.rule.is_evictable)
        bounds = removable.bounds(self.request.compiled, self.attempt.policy, self.attempt.possible, self._short)
        alone = self.rule.while_ is None and not self.state.budgets and not self.state.gangs.placed
        learns = alone and self.attempt.local()
        best: Choice | None = None
        for row in islice(bounds.cheapest_first(), most_nodes):
            least = (0, *bounds.at(row))
            if best is not None and best.cost <= least:
                break
            found = self._victims_on(row, removable.on_row[row], least)
            if learns:
                bounds.learn(row, found.cost[1:5] if found else None)
            if found is not None and (best is None or found.cost < best.cost):
                best = found
                if best.cost == least:
                    break
        if best is None:
            return None
        keys = tuple(placed.pod.key for placed in best.victims)
        return Eviction(self.state.columns.names[best.row], keys, tuple(best.broken.get(key, "") for key in keys))

    def _short(self, rows: Rows) -> tuple[Rows, Ints]:
        """Return the counted resources that the pod requests, (k,), and how much each row lacks of them, (k, n).

        Negative amounts are free beyond the request.
        """
        compiled, state = self.request.compiled, self.state
        cards = {state.resources.index[name] for name in GPU_RESOURCES if name in state.resources.index}
        # Exclude GPU resources: GPUs are counted separately, and several pods may have shares of one GPU.
        kept = [i for i, resource in enumerate(compiled.needs_rows.tolist()) if resource not in cards]
        if not self.counts_amounts:
            kept = []
        resources, needs = compiled.needs_rows[kept], compiled.needs[kept]
        field = state.columns.field
        cells = np.ix_(resources, rows)
        return resources, needs[:, None] - field("allocatable")[cells] + field("requested")[cells]

    # -- one node ----------------------------------------------------------------------------------------------------

    def _victims_on(self, row: int, leaving: Sequence[PlacedPod], least: Cost) -> Choice | None:
        """Return the cheapest victims on a row; the state is unchanged afterwards."""
        units = self._units(leaving)
        if not units:
            return None
        broken = self._violated_budgets(units) if self.state.budgets else {}
        found = self._reprieve(units, _by_importance(units, broken), row, broken)
        if found is not None and found.cost > least and len(found.victims) > 1:
            order = _by_size(units, broken, self._sizes(row), self.state.gangs)
            other = self._reprieve(units, order, row, broken)
            if other is not None:
                found = min(found, other, key=lambda choice: (self._violations(choice), choice.cost))
        return found

    def _violations(self, choice: Choice) -> int:
        """Return how many of the victims violate a budget if only they are evicted, not all preemptible pods."""
        return len(self._violated_budgets([choice.victims]))

    def _units(self, leaving: Sequence[PlacedPod]) -> list[Unit]:
        """Group `leaving` into units that may be preempted together: gangs or single pods, the most important first.

        `leaving` is sorted by importance, the least important first.
        """
        holds = self.rule.while_
        if holds is None and not any(preempted_whole(placed.pod, self.state.gangs) for placed in leaving):
            return [(placed,) for placed in reversed(leaving)]
        units: list[Unit] = []
        for placed in leaving:
            unit = self._unit(placed)
            if unit and (holds is None or holds(placed)):
                self._forget(unit)
                units.append(unit)
        self._restore_units(units)
        return units[::-1]

    def _unit(self, placed: PlacedPod) -> Unit:
        """Return the pods evicted together with a pod; empty if one is protected or the pod is already removed."""
        state = self.state
        if placed.pod.key not in state.placed_pods:
            return ()
        if not preempted_whole(placed.pod, state.gangs):
            return (placed,)
        names = state.gangs.placed[gang_key(placed.pod) or ""]
        members = sorted((state.placed_pods[name] for name in names), key=importance)
        return tuple(members) if all(map(self.rule.is_evictable, members)) else ()

    def _reprieve(
        self, units: Sequence[Unit], order: Sequence[Unit], row: int, broken: dict[str, str]
    ) -> Choice | None:
        """Return the victims that remain after units are reprieved in `order`, or None if eviction does not help.

        Some units cannot be reprieved in any case, because an amount would be insufficient (`_overfull`). If the
        filters accept the pod after only these units are removed, the result equals that of reprieving units one by
        one.
        """
        victims = self._overfull(order, row)
        try:
            self._forget_units(victims)
            if not victims or not self.attempt.fits(row):
                self._forget_units(units)
                if not self.attempt.fits(row):
                    return None
                victims = [unit for unit in order if not self._can_stay(unit, row)]
            if not victims or not self.attempt.grants(row):
                return None
        finally:
            self._restore_units(units)
        leaving = sorted((placed for unit in victims for placed in unit), key=importance)
        return Choice(_cost(leaving, row, broken), row, tuple(leaving), broken)

    def _can_stay(self, unit: Unit, row: int) -> bool:
        """Restore a unit if the pod still fits; return whether it was restored."""
        self._restore_units([unit])
        if self.attempt.fits(row):
            return True
        self._forget(unit)
        return False

    def _overfull(self, order: Sequence[Unit], row: int) -> list[Unit]:
        """Return the units that cannot stay because a resource is insufficient if units are restored in `order`."""
        resources, short = self._short(np.array([row], np.intp))
        requested = self.state.columns.layout.load["requested"]
        held = {
            shape: shape.delta[requested][resources].tolist()
            for shape in {placed.compiled for unit in order for placed in unit}
        }
        room = [-amount for amount in short[:, 0].tolist()]
        amounts: list[list[int]] = []
        for unit in order:
            own = [held[placed.compiled] for placed in unit if placed.row == row]
            amounts.append(own[0] if len(own) == 1 else [sum(column) for column in zip(*own, strict=True)])
            room = [allowed + amount for allowed, amount in zip(room, amounts[-1], strict=True)]
        victims: list[Unit] = []
        for unit, asked in zip(order, amounts, strict=True):
            allowed = [have - amount for have, amount in zip(room, asked, strict=True)]
            if min(allowed, default=0) >= 0:
                room = allowed
            else:
                victims.append(unit)
        return victims

    def _forget_units(self, units: Iterable[Unit]) -> None:
        for unit in units:
            self._forget(unit)

    def _forget(self, unit: Unit) -> None:
        for placed in unit:
            self.state.forget(placed.pod.key)

    def _restore_units(self, units: Iterable[Unit]) -> None:
        for unit in units:
            for placed in unit:
                if placed.pod.key not in self.state.placed_pods:
                    self.state.restore(placed)

    def _violated_budgets(self, units: Sequence[Unit]) -> dict[str, str]:
        """Return, by pod key, the disruption budget that the pod's eviction violates if units are evicted in order."""
        broken: dict[str, str] = {}
        allowed = dict(self._evictions_left)
        for unit in units:
            for placed in unit:
                for budget, before in allowed.items():
                    if matcher(budget).matches(placed.pod, self.state.namespaces):
                        allowed[budget] = before - 1
                        if before <= 0:
                            broken.setdefault(placed.pod.key, f"{budget.namespace}/{budget.name}")
        return broken

    def _sizes(self, row: int) -> Callable[[Unit], float]:
        """Return a function that maps a unit to the share of the row's shortfall (amounts, GPUs) that it releases."""
        columns, demand = self.state.columns, self.request.shape.gpu
        resources, short = self._short(np.array([row], np.intp))
        lacking = short[:, 0] > 0
        resources, amounts = resources[lacking], short[lacking, 0]
        requested = columns.layout.load["requested"]
        cards = demand.count * demand.milli if demand is not None else 0

        def size(unit: Unit) -> float:
            share = 0.0
            for placed in unit:
                if placed.row == row:
                    share += float(np.max(placed.compiled.delta[requested][resources] / amounts, initial=0.0))
                    share += sum(card.milli for card in placed.allocation.gpus) / cards if cards else 0.0
            return share

        return size


def _breaks(unit: Unit, broken: dict[str, str]) -> bool:
    return any(placed.pod.key in broken for placed in unit)


def _by_importance(units: Sequence[Unit], broken: dict[str, str]) -> list[Unit]:
    return sorted(units, key=lambda unit: not _breaks(unit, broken))


def _by_size(units: Sequence[Unit], broken: dict[str, str], size: Callable[[Unit], float], gangs: Gangs) -> list[Unit]:
    def key(unit: Unit) -> tuple[bool, int, bool, float]:
        highest = max(placed.pod.priority for placed in unit)
        return (not _breaks(unit, broken), -highest, not preempted_whole(unit[0].pod, gangs), size(unit))

    return sorted(units, key=key)


def _cost(victims: Sequence[PlacedPod], row: int, broken: dict[str, str]) -> Cost:
    highest = max(placed.pod.priority for placed in victims)
    total = sum(placed.pod.priority + SUM_OFFSET for placed in victims)
    start = min(start_of(placed) for placed in victims if placed.pod.priority == highest)
    return (sum(placed.pod.key in broken for placed in victims), highest, total, len(victims), -start, row)
