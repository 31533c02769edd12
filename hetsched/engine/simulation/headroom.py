"""How many more copies of a pod fit, node by node.

Problem: that 68 % of the CPUs are requested does not say whether one more job of mine fits, and where.
Rule: copies of a shape without rules about other pods (`alone`) do not concern each other across nodes, so what a set
of nodes takes is the sum over its nodes. Where nothing but `resource-fit` looks at what is booked, a node takes
    min over the resources asked for of floor((allocatable - requested) / asked)
Elsewhere copies are booked on the node one after another, by the very filters and Reserve steps that decide, until one
refuses; then they are taken back. What a node takes follows from its own columns and the CPUs that are held there, so
it is remembered by these, and a node that did not change since, or is like another one, costs a look.
Quotas, evictions and gangs are left aside: this is what fits beside all that is booked.
Invariants: the sum equals what a what-if of so many copies places without evictions; the state is left as it was.
"""

from __future__ import annotations

import msgspec
import numpy as np

from hetsched.contracts.units import GPU_RESOURCES
from hetsched.contracts.workload import PodSpec, Shape
from hetsched.engine.cluster.columns import Bools, Ints, Window
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.scoring import INFEASIBLE, Evaluation
from hetsched.engine.framework.status import Refusal

MOST_COPIES = 10_000  # on one node: a shape that asks for nothing has no end
_MOST_KNOWN = 200_000
# Their Reserve steps refuse only what their filters refuse too.
_RESERVES = frozenset({"gpu-fit", "isa-match", "numa-fit", "volumes", "devices"})


def alone(shape: Shape) -> Shape:
    """Return the shape without what concerns other pods, single volumes or devices, or one named node."""
    return msgspec.structs.replace(
        shape, affinity=(), anti_affinity=(), preferred_affinity=(), preferred_nodes=(), spread=(), host_ports=(),
        claims=(), devices=(), required_node="",
    )  # fmt: skip


class Copies(msgspec.Struct, frozen=True):
    """What fits now. Shapes: `counts` (N,) copies by row; `exact` (N,) bool, False where at least so many fit."""

    counts: Ints
    exact: Bools


class Budget(msgspec.Struct):
    """How many copies may be booked before the rest is left for the next time."""

    bookings: int


class Headroom:
    """Counts copies on one state, as it is now; remembers what single nodes take.

    Use it with schedulers of one policy, on one state or forks of it.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Shape, bytes, frozenset[int], int], int] = {}

    def count(self, scheduler: Scheduler, pod: PodSpec, budget: Budget) -> Copies:
        """Count the copies of a pod that fit on each row; its shape has to be `alone`."""
        request = scheduler.state.compile(pod)
        evaluation, total = scheduler.evaluator.evaluate(request)
        feasible: Bools = total > INFEASIBLE
        counts: Ints = np.zeros(len(feasible), np.int64)
        exact: Bools = np.ones(len(feasible), np.bool_)
        names = {plugin.name for plugin in evaluation.load_filters}
        if names <= {"resource-fit"} and {plugin.name for plugin in scheduler.policy.reserves} <= _RESERVES:
            counts[feasible] = _quotients(scheduler, request)[feasible]
            exact = counts < MOST_COPIES
            return Copies(counts, exact)
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        for row in np.flatnonzero(feasible).tolist():
            counts[row], exact[row] = self._on_row(scheduler, request, evaluation, row, budget)
        return Copies(counts, exact)

    def _on_row(
        self, scheduler: Scheduler, request: Request, evaluation: Evaluation, row: int, budget: Budget
    ) -> tuple[int, bool]:
        columns, zones = scheduler.state.columns, scheduler.state.zones
        cells = columns.static[:, row].tobytes() + columns.load[:, row].tobytes()
        # Links between cards belong to single nodes.
        own = row if row in scheduler.state.links else -1
        key = (request.shape, cells, frozenset(zones.held.get(row, ())), own)
        found = self._known.get(key)
        if found is None:
            if budget.bookings <= 0:
                return 1, False
            found = self._known[key] = _booked(scheduler, request, evaluation, row)
            budget.bookings -= found + 1
        return found, found < MOST_COPIES


def _quotients(scheduler: Scheduler, request: Request) -> Ints:
    """Return (N,) how often what is asked for goes into what is free."""
    state = scheduler.state
    left_out = GPU_RESOURCES if any(plugin.name == "gpu-fit" for plugin in scheduler.policy.plugins) else frozenset()
    rows = [row for row in request.compiled.needs_rows.tolist() if state.resources.values[row] not in left_out]
    needs = request.compiled.delta[state.columns.layout.load["requested"]][rows]
    if not rows:
        return np.full(len(state.reports), MOST_COPIES, np.int64)
    free = (state.columns.field("allocatable") - state.columns.field("requested"))[rows]
    fits: Ints = np.clip((free // needs[:, None]).min(axis=0), 0, MOST_COPIES)
    return fits


def _booked(scheduler: Scheduler, request: Request, evaluation: Evaluation, row: int) -> int:
    """Book copies on a row until one is refused, and take them back."""
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
