"""Joint placement of a batch of pods: maximise the Nash product over the whole batch instead of pod by pod.

Joint placement maximises first the number of placed pods, then the product of the nodes' utilities (see
`engine.framework.nash`). The requests on a node must not exceed its free amounts, and its expected usage must not
exceed its capacity (constraints (8)-(12)).

    greedy     as published: in queue order, each pod on the node where the product grows most
    exact      the product has one factor S_i per node i, which depends only on the number of pods of each kind on the
               node. The best split of the pods over the first i nodes follows from the best splits over i - 1 nodes:
               best_i[k] = max over t <= k of best_(i-1)[k - t] + ln S_i(t). Every split is evaluated, so the result is
               the optimum
    improved   starts from the greedy plan, and from a plan that always places the best pair of pod and node; pods move
               to other nodes and swap places while the product grows

Pods with GPUs, zones, devices, or rules between pods are not supported, because they need more than amounts of
resources.
Source: MBCGT (Li et al., Journal of Xidian University 2021 48(6)), equations (6)-(12); `exact` and `improved` are
specific to hetsched.
Invariants: exact >= improved >= greedy, and the same problem yields the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.columns import Bools, Floats, Ints, Rows, Window
from hetsched.engine.cluster.devices.state import DeviceState
from hetsched.engine.framework import nash
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.scoring import INFEASIBLE

_LEAST_GROWTH = 1e-12


class JointProblem(NamedTuple):
    """Pods and nodes of a joint placement, for N Ready nodes and C kinds of pods.

    k is the number of resources in the utility (at most four), R the number of all requestable resources.
    Shapes: `rows` (N,) has the node rows; `used` (k, N) the usage and `room` (k, N) the capacity of the nodes; `free`
    (R, N) the unrequested amounts; `added` (C, k, N) the amounts that a pod of a kind adds to `used`; `needs` (C, R)
    its requests; `allowed` (C, N) marks the nodes that pass the policy's filters. `kinds` has the kind of each pod in
    queue order.
    """

    rows: Rows
    used: Ints
    room: Ints
    free: Ints
    added: Ints
    needs: Ints
    allowed: Bools
    kinds: tuple[int, ...]
    dispersion: nash.Dispersion

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of pods of each kind."""
        return tuple(self.kinds.count(kind) for kind in range(len(self.added)))


class JointPlan(NamedTuple):
    """Node of each pod (the node's row, or -1 if not placed), and the resulting balance.

    `log_product` is ln of the Nash product; `before` and `after` are the cluster's balance degrees.
    """

    rows: tuple[int, ...]
    log_product: float
    before: float
    after: float

    @property
    def worth(self) -> tuple[int, float]:
        """Key by which plans are compared: the number of placed pods, then the Nash product."""
        return len(self.rows) - self.rows.count(-1), self.log_product


def is_plain(pod: PodSpec, devices: DeviceState) -> bool:
    """Return whether a pod requests only amounts of resources, as required for joint placement.

    A resource that devices of a class may serve is no amount.
    """
    shape = pod.shape
    apart = shape.gpu or shape.numa or shape.guaranteed or shape.spread or shape.host_ports or shape.claims
    rules = shape.affinity or shape.anti_affinity or shape.preferred_affinity
    return pod.ready and not (apart or rules or devices.needed(pod))


def problem_of(scheduler: Scheduler, pods: Sequence[PodSpec], dispersion: nash.Dispersion = "variance") -> JointProblem:
    """Return the problem of placing `pods`, in queue order, under the scheduler's policy.

    Raises: ValueError for a pod that is not plain.
    """
    state = scheduler.state
    for pod in pods:
        if not is_plain(pod, state.devices):
            raise ValueError(f"{pod.key} requests more than amounts of resources")
    requests = [state.compile(pod) for pod in pods]
    requests = [state.compile(pod) for pod in pods]  # compile again, because a new shape may have added columns
    known: dict[int, Request] = {}
    for request in requests:
        known.setdefault(id(request.compiled), request)
    position = {key: kind for kind, key in enumerate(known)}
    rows = np.flatnonzero(state.all_rows.static("ready"))
    nodes, resources = Window(state.columns, rows), nash.resources_of(state)
    free = nodes.static("allocatable") - nodes.load("requested")
    amounts = state.columns.layout.load["requested"]
    added = [nash.demand(request, nodes, resources) for request in known.values()]
    needs = [request.compiled.delta[amounts] for request in known.values()]
    allowed = [scheduler.evaluator.evaluate(request)[1][rows] > INFEASIBLE for request in known.values()]
    return JointProblem(
        rows=rows,
        used=nash.used(nodes, resources),
        room=nash.capacity(nodes, resources),
        free=free,
        added=np.array(added, np.int64).reshape(len(known), len(resources.used), len(rows)),
        needs=np.array(needs, np.int64).reshape(len(known), len(free)),
        allowed=np.array(allowed, np.bool_).reshape(len(known), len(rows)),
        kinds=tuple(position[id(request.compiled)] for request in requests),
        dispersion=dispersion,
    )


def greedy(problem: JointProblem) -> JointPlan:
    """Place each pod, in queue order, on the node where the product grows most.

    Ties are broken by lower mean utilisation, then by node order.
    """
    ground = _PlanningState(problem)
    for kind in problem.kinds:
        ground.put(kind, ground.best_node(kind)[0])
    return ground.plan()


# -- exact -----------------------------------------------------------------------------------------------------------


def exact(problem: JointProblem) -> JointPlan:
    """Return the optimal plan."""
    counts = problem.counts
    if not counts:
        return greedy(problem)
    shape = tuple(count + 1 for count in counts)
    takes = np.array(list(product(*map(range, shape))), np.int64).reshape(math.prod(shape), len(counts))
    best: Floats = np.full(shape, -np.inf)
    best[(0,) * len(counts)] = 0.0
    chosen: list[Ints] = []
    for node in range(len(problem.rows)):
        factors = _factors(problem, node, takes)
        wider: Floats = np.full(shape, -np.inf)
        choice: Ints = np.zeros(shape, np.int64)
        for number in np.flatnonzero(factors > -np.inf).tolist():
            take = takes[number].tolist()
            above = tuple(slice(amount, None) for amount in take)
            below = tuple(slice(0, size - amount) for size, amount in zip(shape, take, strict=True))
            value = best[below] + factors[number]
            better = value > wider[above]
            wider[above][better] = value[better]
            choice[above][better] = number
        best = wider
        chosen.append(choice)
    placed = takes.sum(axis=1)
    flat = best.reshape(-1)
    most = placed[flat > -np.inf].max()
    left = takes[int(np.where(placed == most, flat, -np.inf).argmax())]
    ground = _PlanningState(problem)
    for node in reversed(range(len(problem.rows))):
        take = takes[chosen[node][tuple(left)]]
        for kind, amount in enumerate(take.tolist()):
            for _ in range(amount):
                ground.put(kind, node)
        left = left - take
    return ground.plan()


def _factors(problem: JointProblem, node: int, takes: Ints) -> Floats:
    """Return ln S of one node for each combination of pods, shape (T,); -inf where a combination does not fit.

    S is the utility of the node. `takes` (T, C) has the number of pods of each kind.
    """
    added = takes @ problem.added[:, :, node]
    room = problem.room[:, node, None]
    use = problem.used[:, node, None] + added.T
    over = (added.T > 0) & (room > 0) & (use > room)
    needs = takes @ problem.needs
    short = (needs > 0) & (needs > problem.free[:, node])
    fits = ~over.any(axis=0) & ~short.any(axis=1) & ~(takes[:, ~problem.allowed[:, node]] > 0).any(axis=1)
    utilities, _ = nash.utility(use, np.broadcast_to(room, use.shape), problem.dispersion)
    return np.where(fits, np.log(utilities), -np.inf)


# -- better than greedy ------------------------------------------------------------------------------------------------


def improved(problem: JointProblem) -> JointPlan:
    """Return the best plan from two starting plans, each improved until the product stops growing."""
    starts = [_PlanningState(problem), _PlanningState(problem)]
    for kind in problem.kinds:
        starts[0].put(kind, starts[0].best_node(kind)[0])
    starts[1].fill()
    for ground in starts:
        while ground.moved() or ground.exchanged():
            pass
        ground.fill()
    return max((ground.plan() for ground in starts), key=lambda plan: plan.worth)


class _PlanningState:
    """State of the cluster during planning: used and free resources, and the pods of each kind on each node."""

    def __init__(self, problem: JointProblem) -> None:
        self.problem = problem
        self.used, self.free = problem.used.copy(), problem.free.copy()
        self.held: Ints = np.zeros((len(problem.added), len(problem.rows)), np.int64)
        self.waiting = list(problem.counts)
        self.logs = self._logs(self.used, slice(None))

    def _logs(self, used: Ints, nodes: slice | Rows) -> Floats:
        utilities, self._mean = nash.utility(used, self.problem.room[:, nodes], self.problem.dispersion)
        return np.log(utilities)

    def put(self, kind: int, node: int, sign: int = 1) -> None:
        """Add a pod to a node, or remove it if `sign` is -1; node -1 means no node."""
        if node < 0:
            return
        self.used[:, node] += sign * self.problem.added[kind, :, node]
        self.free[:, node] -= sign * self.problem.needs[kind]
        self.held[kind, node] += sign
        self.waiting[kind] -= sign
        self.logs[node] = self._logs(self.used[:, [node]], np.array([node]))[0]

    def _after(self, kind: int, nodes: Rows, less: int = -1) -> Floats:
        """Return ln S of the nodes with one more pod of `kind` and one fewer of `less`; -inf where it does not fit."""
        problem = self.problem
        used, free = self.used[:, nodes], self.free[:, nodes]
        if less >= 0:
            used = used - problem.added[less][:, nodes]
            free = free + problem.needs[less][:, None]
        added, needs, room = problem.added[kind][:, nodes], problem.needs[kind][:, None], problem.room[:, nodes]
        use = used + added
        full = ((added > 0) & (room > 0) & (use > room)).any(axis=0) | ((needs > 0) & (needs > free)).any(axis=0)
        logs = self._logs(use, nodes)
        return np.where(full | ~problem.allowed[kind, nodes], -np.inf, logs)

    def best_node(self, kind: int) -> tuple[int, float]:
        """Return the node where a pod of `kind` raises the product most, or -1 if it fits nowhere, and the increase."""
        every = np.arange(len(self.problem.rows))
        growth = self._after(kind, every) - self.logs
        if not growth.size or growth.max() == -np.inf:
            return -1, -np.inf
        ranked = np.where(growth > -np.inf, nash.ranked(np.maximum(growth, -9.0), self._mean), -np.inf)
        node = int(ranked.argmax())
        return node, float(growth[node])

    def fill(self) -> None:
        """Place the pending pods, always choosing the pair of kind and node with the largest increase."""
        while True:
            offers = [(self.best_node(kind), kind) for kind, count in enumerate(self.waiting) if count]
            offers = [offer for offer in offers if offer[0][0] >= 0]
            if not offers:
                return
            (node, _), kind = max(offers, key=lambda offer: offer[0][1])
            self.put(kind, node)

    def moved(self) -> bool:
        """Move each pod to the node where the product grows most; return whether any pod moved."""
        grew = False
        for kind, node in np.argwhere(self.held > 0).tolist():
            before = self.logs[node]
            self.put(kind, node, -1)
            target, growth = self.best_node(kind)
            if growth <= before - self.logs[node] + _LEAST_GROWTH:
                target = node
            self.put(kind, target)
            grew |= target != node
        return grew

    def exchanged(self) -> bool:
        """Swap each pod with the pod for which the product grows most; return whether any pods were swapped."""
        grew = False
        for kind, node in np.argwhere(self.held > 0).tolist():
            best, partner = _LEAST_GROWTH, None
            for other in range(len(self.held)):
                there = np.flatnonzero(self.held[other])
                there = there[there != node]
                if other == kind or not there.size or not self.held[kind, node]:
                    continue
                here = self._after(other, np.array([node]), kind)[0] - self.logs[node]
                growth = here + self._after(kind, there, other) - self.logs[there]
                at = int(growth.argmax())
                if growth[at] > best:
                    best, partner = float(growth[at]), (other, int(there[at]))
            if partner is not None:
                other, target = partner
                self.put(kind, node, -1)
                self.put(other, target, -1)
                self.put(kind, target)
                self.put(other, node)
                grew = True
        return grew

    def plan(self) -> JointPlan:
        """Assign the pods of each kind, in queue order, to the nodes with pods of that kind, in node order."""
        nodes = [iter(np.repeat(self.problem.rows, held).tolist()) for held in self.held]
        placed = tuple(next(nodes[kind], -1) for kind in self.problem.kinds)
        before = self._logs(self.problem.used, slice(None))
        return JointPlan(placed, math.fsum(self.logs.tolist()), _degree(before), _degree(self.logs))


def _degree(logs: Floats) -> float:
    return float(np.exp(logs).mean()) if logs.size else 1.0
