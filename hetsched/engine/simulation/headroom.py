"""Headroom: how many more copies of a pod fit, node by node.

A utilisation of 68 % does not show whether and where one more job fits. Copies of a shape without rules about other
pods (see `alone`) do not affect copies on other nodes, so the result for a set of nodes is the sum over its nodes. If
`resource-fit` is the only filter that depends on the load, the number of copies on a node is
    min over the requested resources of floor((allocatable - requested) / request)
Otherwise copies are placed on the node one after another, by the policy's own filters and Reserve plugins, until a copy
is rejected; then all copies are undone. The result depends only on the node's columns and its assigned CPUs, and is
cached by these. Quotas, preemption and gangs are not considered: the result is the capacity that all placed pods leave
free.
Invariants: the sum equals the number of copies that a what-if places without evictions; the state is unchanged
afterwards.
"""

from __future__ import annotations

import msgspec
import numpy as np

from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.contracts.units import GPU_RESOURCES
from hetsched.engine.cluster.columns import Bools, Ints, Window
from hetsched.engine.framework.compiled_terms import BuiltinFilter
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.scoring import INFEASIBLE, Evaluation
from hetsched.engine.framework.status import Refusal

MOST_COPIES = 10_000  # limit per node, for shapes that request nothing
_MOST_KNOWN = 200_000


def alone(shape: Shape) -> Shape:
    """Return the shape without its relations to other pods, single volumes or devices, or one named node."""
    return msgspec.structs.replace(
        shape, affinity=(), anti_affinity=(), preferred_affinity=(), preferred_nodes=(), spread=(), host_ports=(),
        claims=(), devices=(), required_node="",
    )  # fmt: skip


class Copies(msgspec.Struct, frozen=True):
    """Number of copies of a pod that fit on each node now: `counts` (N,), by the row of the node.

    `exact` (N,) is False where the count is only a lower bound. `emulated` (N,) is True where a copy would run by
    emulation or with a cross toolchain.
    """

    counts: Ints
    exact: Bools
    emulated: Bools


class TrialBudget(msgspec.Struct):
    """Number of trial placements left for one headroom table; nodes beyond it are counted for a later table."""

    placed_pods: int


class Headroom:
    """Counter of the copies of a pod that fit in the current state, with a cache of the counts by node.

    Use it with schedulers of one policy, on one state or forks of it.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Shape, bytes, frozenset[int], int], int] = {}

    def count(self, scheduler: Scheduler, pod: PodSpec, budget: TrialBudget) -> Copies:
        """Count the copies of a pod that fit on each row; its shape must be a result of `alone`."""
        request = scheduler.state.compile(pod)
        evaluation, total = scheduler.evaluator.evaluate(request)
        feasible: Bools = total > INFEASIBLE
        counts: Ints = np.zeros(len(feasible), np.int64)
        exact: Bools = np.ones(len(feasible), np.bool_)
        amounts = all(p.info.compiled_filter is BuiltinFilter.RESOURCES for p in evaluation.load_filters)
        emulated = _emulated(scheduler, request)
        # A Reserve plugin that the compiled loop covers refuses only nodes that its filter also refuses.
        needs_devices = scheduler.state.devices.needed(pod)
        covered = all(plugin.info.compiled_reserve is not None for plugin in scheduler.policy.reserves)
        if amounts and covered and not needs_devices:
            counts[feasible] = _quotients(scheduler, request)[feasible]
            exact = counts < MOST_COPIES
            return Copies(counts, exact, emulated)
        if len(self._known) > _MOST_KNOWN or needs_devices:
            self._known.clear()  # the columns of a node do not contain its free devices
        for row in np.flatnonzero(feasible).tolist():
            counts[row], exact[row] = self._on_row(scheduler, request, evaluation, row, budget)
        return Copies(counts, exact, emulated)

    def _on_row(
        self, scheduler: Scheduler, request: Request, evaluation: Evaluation, row: int, budget: TrialBudget
    ) -> tuple[int, bool]:
        columns, zones = scheduler.state.columns, scheduler.state.zones
        cells = columns.static[:, row].tobytes() + columns.load[:, row].tobytes()
        # Nodes with GPU links do not share results, because their links may differ.
        own = row if row in scheduler.state.links or scheduler.state.devices.needed(request.pod) else -1
        key = (request.shape, cells, frozenset(zones.held.get(row, ())), own)
        found = self._known.get(key)
        if found is None:
            if budget.placed_pods <= 0:
                return 1, False
            found = self._known[key] = _placed(scheduler, request, evaluation, row)
            budget.placed_pods -= found + 1
        return found, found < MOST_COPIES


def _emulated(scheduler: Scheduler, request: Request) -> Bools:
    """Return the (N,) mask of nodes on which the pod's instructions would run emulated, as the policy compares them."""
    found: Bools = np.zeros(len(scheduler.state.reports), np.bool_)
    for plugin in scheduler.policy.plugins:
        if plugin.emulated_on is not None:
            found = found | plugin.emulated_on(request, scheduler.state)
    return found


def _quotients(scheduler: Scheduler, request: Request) -> Ints:
    """Return the number of times that the request fits into each node's free amounts, shape (N,)."""
    state = scheduler.state
    left_out = GPU_RESOURCES if scheduler.policy.card_filter is not None else frozenset()
    rows = [row for row in request.compiled.needs_rows.tolist() if state.resources.values[row] not in left_out]
    needs = request.compiled.delta[state.columns.layout.load["requested"]][rows]
    if not rows:
        return np.full(len(state.reports), MOST_COPIES, np.int64)
    free = (state.columns.field("allocatable") - state.columns.field("requested"))[rows]
    fits: Ints = np.clip((free // needs[:, None]).min(axis=0), 0, MOST_COPIES)
    return fits


def _placed(scheduler: Scheduler, request: Request, evaluation: Evaluation, row: int) -> int:
    """Place copies of the pod on the node at `row` until one is rejected, remove them, and return how many fitted."""
    state, here = scheduler.state, np.array([row], np.intp)
    keys: list[str] = []
    try:
        while len(keys) < MOST_COPIES:
            copy = Request(
                msgspec.structs.replace(request.pod, name=f"{request.pod.name}-{len(keys)}"), request.compiled
            )
            copy.memo = evaluation.memo
            node = Window(state.columns, here)
            if not all(plugin.instance.filter(copy, node)[0] for plugin in evaluation.load_filters):
                break
            reserved = scheduler.reserve(copy, row)
            if isinstance(reserved, Refusal):
                break
            state.assume(copy, row, reserved)
            keys.append(copy.pod.key)
    finally:
        for key in reversed(keys):
            state.forget(key)
    return len(keys)
