"""Prefer nodes where CPU and memory are used to the same degree.

Rule: f_r = min(1, requested_r / capacity_r) with the pod included, over the resources the node has.
    std          std = |f_cpu - f_memory| / 2 (0 if the node has only one of them);  score = floor((1 - std) * 100)
    change       score = 50 + floor((50 + with - without) / 2), where `with` and `without` are the scores of the form
                 std with and without the pod: 75 if the balance stays, more if it improves, less if it gets worse
    difference   score = floor((1 - |f_cpu - f_memory|) * 100); a resource that the node lacks counts as full; the score
                 is 0 if the requests fill either resource; measured use above the capacity is not capped at 1
With `use` "measured", the node's measured use and the pod's expected use replace the requests. Pods that request
neither CPU nor memory are not scored.
Source: kube-scheduler's NodeResourcesBalancedAllocation (noderesources/balanced_allocation.go): form "change" since
1.36, "std" before. The form "difference" is from version 1.18 (priorities/balanced_resource_allocation.go), the
baseline of MBCGT and ISAMatch. Upstream recommends the plugin only together with least-allocated.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from hetsched.contracts.objects.workload import Shape
from hetsched.contracts.params import Params
from hetsched.contracts.units import CPU, MEMORY
from hetsched.engine.cluster.columns import Bools, Floats, Ints, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework import nash
from hetsched.engine.framework.compiled_terms import CompiledTerm, FiltersCards, FormulaInput, loop_function
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Skip

_PREPARED: StateKey[tuple[Ints, bool]] = StateKey("balanced-allocation")


class BalancedAllocationParams(Params, frozen=True):
    """Formula, and whether requested or measured use is compared."""

    form: Annotated[
        Literal["std", "change", "difference"],
        msgspec.Meta(
            title="Formula",
            description="std: balance with the pod, as in kube-scheduler before 1.36. change: how the pod changes the "
            "balance, as in kube-scheduler since 1.36. difference: formula of Kubernetes 1.18.",
        ),
    ] = "std"
    use: Annotated[
        Literal["requested", "measured"],
        msgspec.Meta(title="Use", description="Whether the score is computed from requested or measured use."),
    ] = "requested"


@loop_function
def _balance_of(cpu_used: float, memory_used: float, cpu_capacity: float, memory_capacity: float) -> float:
    cpu_use = min(cpu_used / cpu_capacity, 1.0)
    memory_use = min(memory_used / memory_capacity, 1.0)
    return float(np.floor((1.0 - abs(cpu_use - memory_use) * 0.5) * 100.0))


@loop_function
def _balanced_allocation(
    total: Any, weight: float, nodes: Any, at: Any, delta: Any, extra: Any, given: Any, cards: Any
) -> None:
    cpu_capacity = nodes.static[at.allocatable, nodes.first : nodes.last]
    memory_capacity = nodes.static[at.allocatable + 1, nodes.first : nodes.last]
    cpu_used = nodes.load[at.requested, nodes.first : nodes.last]
    memory_used = nodes.load[at.requested + 1, nodes.first : nodes.last]
    cpu, memory = delta[at.requested], delta[at.requested + 1]
    for i in range(len(total)):
        score = _balance_of(cpu_used[i] + cpu, memory_used[i] + memory, cpu_capacity[i], memory_capacity[i])
        total[i] += weight * (score if (cpu_capacity[i] > 0) & (memory_capacity[i] > 0) else 100.0)


@loop_function
def _balance_change(
    total: Any, weight: float, nodes: Any, at: Any, delta: Any, extra: Any, given: Any, cards: Any
) -> None:
    cpu_capacity = nodes.static[at.allocatable, nodes.first : nodes.last]
    memory_capacity = nodes.static[at.allocatable + 1, nodes.first : nodes.last]
    cpu_used = nodes.load[at.requested, nodes.first : nodes.last]
    memory_used = nodes.load[at.requested + 1, nodes.first : nodes.last]
    cpu, memory = delta[at.requested], delta[at.requested + 1]
    for i in range(len(total)):
        after = _balance_of(cpu_used[i] + cpu, memory_used[i] + memory, cpu_capacity[i], memory_capacity[i])
        before = _balance_of(cpu_used[i], memory_used[i], cpu_capacity[i], memory_capacity[i])
        score = 50.0 + np.floor((50.0 + after - before) * 0.5)
        total[i] += weight * (score if (cpu_capacity[i] > 0) & (memory_capacity[i] > 0) else 75.0)


_LOOPS = {"std": _balanced_allocation, "change": _balance_change}


def _asks_cpu_or_memory(shape: Shape) -> bool:
    return any(amount and name in (CPU, MEMORY) for name, amount in shape.requests)


def _inputs(
    plugin: BalancedAllocation, request: Request, state: ClusterState, cards: FiltersCards | None
) -> FormulaInput | Skip | None:
    loop = _LOOPS.get(plugin.params.form)
    if plugin.params.use != "requested" or loop is None:
        return None
    return FormulaInput(loop) if _asks_cpu_or_memory(request.shape) else SKIP


@plugin(
    "balanced-allocation",
    summary="Prefer nodes on which CPU and memory are used to the same degree.",
    params=BalancedAllocationParams,
)
class BalancedAllocation:
    params: BalancedAllocationParams
    compiled_term = CompiledTerm(tuple(_LOOPS.values()), _inputs, key=_asks_cpu_or_memory)

    @property
    def measures(self) -> bool:
        return self.params.use == "measured"

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        shape = request.shape
        asked = np.array([[shape.request(CPU)], [shape.request(MEMORY)]], np.int64)
        expected = self.params.use == "measured" and request.compiled.expected_extra is not None
        if not asked.any() and not expected:
            return SKIP
        lacking = bool((state.all_rows.static("allocatable")[:2] == 0).any())
        request.memo[_PREPARED] = (asked, lacking)
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        asked, lacking = request.memo[_PREPARED]
        capacity = nodes.static("allocatable")[:2]
        before: Ints
        added: Ints = asked
        if self.params.use == "measured":
            both = nash.CPU_AND_MEMORY
            before, added = nash.used(nodes, both), nash.demand(request, nodes, both)
        else:
            before = nodes.load("requested")[:2]
        missing = (capacity == 0) if lacking else None
        if lacking:
            capacity = np.maximum(capacity, 1)
        fraction: Floats = (before + added) / capacity
        if self.params.form == "difference":
            return self._by_difference(fraction, missing)
        score = _balance(fraction, missing)
        if self.params.form == "std":
            return score
        change: Floats = np.floor((50.0 + score - _balance(before / capacity, missing)) / 2)
        return 50.0 + change

    def _by_difference(self, fraction: Floats, missing: Bools | None) -> Floats:
        if missing is not None:
            fraction[missing] = 1.0
        score: Floats = np.floor(np.maximum(1.0 - np.abs(fraction[0] - fraction[1]), 0.0) * 100.0)
        if self.params.use == "requested":
            score[(fraction >= 1.0).any(axis=0)] = 0.0
        return score


def _balance(fraction: Floats, missing: Bools | None) -> Floats:
    """Return floor((1 - std) * 100) for `fraction` (2, n), which is changed; `missing` marks resources a node lacks."""
    np.minimum(fraction, 1.0, out=fraction)
    apart: Floats = fraction[0] - fraction[1]
    np.abs(apart, out=apart)
    apart *= 0.5
    if missing is not None:
        apart[missing.any(axis=0)] = 0.0
    np.subtract(1.0, apart, out=apart)
    apart *= 100.0
    return np.floor(apart, out=apart)
