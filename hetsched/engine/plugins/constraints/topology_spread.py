"""Spread pods evenly over zones, racks or nodes.

Rule, per constraint with topology label k: matching pods are the pods of the same namespace that the selector matches
(an empty selector matches none) and that are not terminating. A node is counted if it has the topology labels of all
constraints of the same kind and meets the inclusion policies: the pod's required node affinity, and its tolerations
with nodeTaintsPolicy Honor. A domain is a value of k on these nodes. `least` is the lowest number of matching pods in a
domain, or 0 if there are fewer than minDomains domains.
    DoNotSchedule   the node has k, and matching in its domain + (1 if the pod matches itself) - least <= maxSkew
    ScheduleAnyway  raw = round(sum over constraints of matching * ln(domains + 2) + maxSkew - 1), where domains are
                    counted over the feasible nodes; for k = kubernetes.io/hostname, matching is per node;
                    score = floor(100 * (most + least - raw) / most) over the feasible nodes that have every label,
                    100 if most is 0, and 0 for nodes that lack a label
Source: kube-scheduler's PodTopologySpread plugin. The cluster-level default constraints of upstream need Service
objects. Cluster files do not contain these, so a pod without constraints is not spread here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from hetsched.contracts.message import Message
from hetsched.contracts.objects.labels import selects
from hetsched.contracts.objects.workload import Shape, SpreadConstraint
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import Bools, Floats, Ints, Window
from hetsched.engine.cluster.selector_counts import Matcher
from hetsched.engine.cluster.selectors import required_nodes
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.extension_points import Scope
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Refusal, Skip
from hetsched.engine.framework.tolerations import tolerated_sets

_PREPARED: StateKey[list[tuple[SpreadConstraint, Bools, Bools]]] = StateKey("topology-spread")
_RAW: StateKey[Floats] = StateKey("topology-spread.raw")

HOSTNAME = "kubernetes.io/hostname"
_NO_LABEL = -1.0


@plugin(
    "topology-spread",
    summary="Spread matching pods evenly over topology domains.",
    scope=Scope.CLUSTER,
    helped_by=frozenset(
        {
            Event.NODE_ADDED,
            Event.NODE_REMOVED,
            Event.NODE_LABELS,
            Event.NODE_TAINTS,
            Event.POD_RELEASED,
            Event.POD_PLACED,
            Event.POD_LABELS,
        }
    ),
)
class TopologySpread:
    def handles(self, shape: Shape) -> bool:
        return bool(shape.spread)

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip:
        constraints = _constraints(request, hard=True) if request.shape.spread else ()
        if not constraints:
            return SKIP
        counted = _counted_nodes(request, state, constraints)
        request.memo[_PREPARED] = [
            (constraint, *_refused(request, state, constraint, nodes))
            for constraint, nodes in zip(constraints, counted, strict=True)
        ]
        return None

    def filter(self, request: Request, nodes: Window) -> Bools:
        fits: Bools = np.ones(nodes.n, np.bool_)
        for _, unlabelled, skewed in request.memo[_PREPARED]:
            fits &= ~nodes.pick(unlabelled | skewed)
        return fits

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        for constraint, unlabelled, skewed in request.memo[_PREPARED]:
            key = constraint.topology_key
            yield (
                Refusal("TopologyLabelMissing", Message("the node has no label {label}", label=key), (key,)),
                nodes.pick(unlabelled),
            )
            message = Message(
                "one more matching pod in this {key} would exceed the maximum skew of {n}",
                key=key,
                n=constraint.max_skew,
            )
            yield Refusal("TopologySpreadSkew", message, (key,), resolvable=True), nodes.pick(skewed)

    def waits(self, request: Request) -> Message:
        keys = " and ".join(constraint.topology_key for constraint, _, _ in request.memo[_PREPARED])
        return Message("matching pods to be spread more evenly over {names}", names=keys)

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        constraints = _constraints(request, hard=False) if request.shape.spread else ()
        if not constraints:
            return SKIP
        counted = _counted_nodes(request, state, constraints)
        labelled = _labelled(state, constraints)
        candidates = labelled if request.feasible is None else labelled & request.feasible
        total: Floats = np.zeros(len(state.reports))
        for constraint, nodes in zip(constraints, counted, strict=True):
            matching, domains = _neighbours(request, state, constraint, nodes, candidates)
            total += matching * math.log(domains + 2) + (constraint.max_skew - 1)
        request.memo[_RAW] = np.where(labelled, np.floor(total + 0.5), _NO_LABEL)
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        raw: Floats = nodes.pick(request.memo[_RAW])
        return raw

    def normalize(self, request: Request, scores: Floats, feasible: Bools) -> Floats:
        labelled = scores != _NO_LABEL
        ranked = labelled & feasible
        most = float(scores.max(initial=0.0, where=ranked))
        least = float(scores.min(initial=np.inf, where=ranked))
        if most == 0:
            return np.where(labelled, 100.0, 0.0)
        return np.where(labelled, np.floor(100.0 * (most + least - scores) / most), 0.0)


def _constraints(request: Request, *, hard: bool) -> tuple[SpreadConstraint, ...]:
    return tuple(constraint for constraint in request.shape.spread if constraint.hard is hard)


def _labelled(state: ClusterState, constraints: tuple[SpreadConstraint, ...]) -> Bools:
    """Return the (N,) mask of nodes that have the topology labels of all constraints."""
    present = [state.label(constraint.topology_key)[0] >= 0 for constraint in constraints]
    every: Bools = np.logical_and.reduce(present)
    return every


def _counted_nodes(request: Request, state: ClusterState, constraints: tuple[SpreadConstraint, ...]) -> list[Bools]:
    """Return, per constraint, the mask (N,) of nodes whose pods are counted; cached until the inventory changes."""
    key = ("topology-spread.nodes", constraints)
    kept: tuple[int, list[Bools]] | None = request.memo.get(key)
    if kept is not None and kept[0] == state.epoch:
        return kept[1]
    labelled = _labelled(state, constraints)
    wanted = required_nodes(state, request.shape)
    tolerated = tolerated_sets(request.shape.tolerations, state.taint_sets.values)[state.all_rows.static("taint_set")]
    counted: list[Bools] = []
    for constraint in constraints:
        nodes = labelled.copy()
        if constraint.honor_node_affinity:
            nodes &= wanted
        if constraint.honor_taints:
            nodes &= tolerated
        counted.append(nodes)
    request.memo[key] = (state.epoch, counted)
    return counted


def _matching(request: Request, state: ClusterState, constraint: SpreadConstraint) -> Ints:
    """Return, for each node, the number of its pods in the pod's namespace that the selector matches, shape (N,)."""
    if constraint.selector is None or not constraint.selector.expressions:
        return np.zeros(len(state.reports), np.int64)
    matcher = Matcher(constraint.selector, (request.pod.namespace,), with_terminating=False)
    return state.neighbours.matching(state, (matcher,))


def _refused(request: Request, state: ClusterState, constraint: SpreadConstraint, nodes: Bools) -> tuple[Bools, Bools]:
    """Return the (N,) masks of nodes without the label, and of nodes where the pod would exceed the maximum skew."""
    ids, values = state.label(constraint.topology_key)
    sums = _sums(ids, len(values), _matching(request, state, constraint), nodes)
    domains = np.unique(ids[nodes])
    least = int(sums[domains].min()) if len(domains) >= max(constraint.min_domains, 1) else 0
    itself = int(selects(constraint.selector, request.pod.labels))
    unlabelled = ids < 0
    skewed: Bools = ~unlabelled & (sums + itself - least > constraint.max_skew)[ids]
    return unlabelled, skewed


def _neighbours(
    request: Request, state: ClusterState, constraint: SpreadConstraint, nodes: Bools, candidates: Bools
) -> tuple[Ints, int]:
    """Return the number of matching pods in each node's domain, shape (N,), and the number of candidate domains."""
    matching = _matching(request, state, constraint)
    if constraint.topology_key == HOSTNAME:
        return matching, int(candidates.sum())
    ids, values = state.label(constraint.topology_key)
    return _sums(ids, len(values), matching, nodes)[ids], len(np.unique(ids[candidates]))


def _sums(ids: Ints, domains: int, counts: Ints, nodes: Bools) -> Ints:
    """Return the sum of `counts` over `nodes` for each domain; the last entry is for nodes without the label."""
    sums = np.zeros(domains + 1, np.int64)
    np.add.at(sums, ids[nodes], counts[nodes])
    return sums
