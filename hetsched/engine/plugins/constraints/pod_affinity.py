"""Place pods together or apart by inter-pod affinity and anti-affinity.

Rule: two pods are neighbours under a term if their nodes have the same value of its topology label. A node fits if
    affinity       for every required term, the node has a neighbour: a placed pod that all terms select. If no such
                   pod exists and the terms select the pod itself, the pod fits any node with the topology labels
    anti-affinity  no placed pod that a required term selects would be a neighbour
    symmetry       no placed pod would be a neighbour under its own required anti-affinity term that selects this pod
The score uses the preferred terms of the pod, and the preferred terms of placed pods that select this pod.
Anti-affinity has a negative weight. A required affinity term of a placed pod that selects this pod has the weight
`hard_weight`:
    raw = sum of weight * matching neighbours;   score = floor(100 * (raw - least) / (most - least)) over feasible nodes
Source: kube-scheduler's InterPodAffinity plugin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
import numpy as np

from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.workload import PodTerm, Shape
from hetsched.contracts.params import Params
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import Bools, Floats, Ints, Window
from hetsched.engine.cluster.pod_terms import in_same_domain, per_domain
from hetsched.engine.cluster.selector_counts import Matcher
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.extension_points import Scope
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Refusal, Skip

_PREPARED: StateKey[_RefusedNodes] = StateKey("pod-affinity")
_RAW: StateKey[Floats] = StateKey("pod-affinity.raw")

_Wish = tuple[str, int, Ints]  # topology key, weight, matching pods per node (N,)

REPELLED = Refusal(
    "ExistingPodAntiAffinity", Message("the anti-affinity of a running pod excludes this pod"), resolvable=True
)


class PodAffinityParams(Params, frozen=True):
    """Weight of the required affinity of placed pods."""

    hard_weight: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=100,
            title="Hard affinity weight",
            description=("Weight of a placed pod whose required affinity matches the pod being scheduled."),
        ),
    ] = 1


class _RefusedNodes:
    """Masks (N,) of the nodes that each rule refuses; None if the rule does not apply."""

    __slots__ = ("affinity", "anti_affinity", "repelled")

    def __init__(self, affinity: Bools | None, anti_affinity: Bools | None, repelled: Bools | None) -> None:
        self.affinity = affinity
        self.anti_affinity = anti_affinity
        self.repelled = repelled


@plugin(
    "pod-affinity",
    summary="Apply the required and preferred affinity and anti-affinity between pods.",
    params=PodAffinityParams,
    scope=Scope.CLUSTER,
    helped_by=frozenset(
        {
            Event.NODE_ADDED,
            Event.NODE_LABELS,
            Event.POD_RELEASED,
            Event.POD_PLACED,
            Event.POD_LABELS,
            Event.NAMES_CHANGED,
        }
    ),
)
class PodAffinity:
    params: PodAffinityParams

    def handles(self, shape: Shape) -> bool:
        """Return whether the shape has inter-pod terms; terms of placed pods are not considered here."""
        return bool(shape.affinity or shape.anti_affinity or shape.preferred_affinity)

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip:
        shape = request.shape
        if not shape.affinity and not shape.anti_affinity and not state.neighbours.repelling:
            return SKIP
        refused = _RefusedNodes(
            _refused_by_affinity(request, state), _refused_by_anti_affinity(request, state), _repelled(request, state)
        )
        if refused.affinity is None and refused.anti_affinity is None and refused.repelled is None:
            return SKIP
        request.memo[_PREPARED] = refused
        return None

    def filter(self, request: Request, nodes: Window) -> Bools:
        refused = request.memo[_PREPARED]
        fits: Bools = np.ones(nodes.n, np.bool_)
        for rows in (refused.affinity, refused.anti_affinity, refused.repelled):
            if rows is not None:
                fits &= ~nodes.pick(rows)
        return fits

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        refused = request.memo[_PREPARED]
        if refused.affinity is not None:
            keys = _keys(request.shape.affinity)
            message = Message(
                "no pod that matches the required pod affinity runs in this {text}", text=joined(" and ", keys)
            )
            yield Refusal("PodAffinityMismatch", message, keys), nodes.pick(refused.affinity)
        if refused.anti_affinity is not None:
            keys = _keys(request.shape.anti_affinity)
            message = Message(
                "a pod that matches the required pod anti-affinity runs in this {text}", text=" or ".join(keys)
            )
            refusal = Refusal("PodAntiAffinityConflict", message, keys, resolvable=True)
            yield refusal, nodes.pick(refused.anti_affinity)
        if refused.repelled is not None:
            yield REPELLED, nodes.pick(refused.repelled)

    def waits(self, request: Request) -> Message:
        refused = request.memo[_PREPARED]
        parts = []
        if refused.affinity is not None:
            parts.append(
                Message(
                    "a pod in the same {text} that matches the required pod affinity",
                    text=joined(" and ", _keys(request.shape.affinity)),
                )
            )
        if refused.anti_affinity is not None:
            parts.append(Message("pods that match the required pod anti-affinity to end"))
        if refused.repelled is not None:
            parts.append(Message("pods whose anti-affinity excludes this pod to end"))
        return joined(" and ", parts)

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        rules = state.neighbours
        if not request.shape.preferred_affinity and not rules.preferring and not rules.attracting:
            return SKIP
        weighted = [
            *_own_preferences(request, state),
            *_preferences_of_placed_pods(request, state, self.params.hard_weight),
        ]
        if not weighted:
            return SKIP
        raw: Floats = np.zeros(len(state.reports))
        for topology_key, weight, counts in weighted:
            raw += weight * per_domain(state, topology_key, counts)
        request.memo[_RAW] = raw
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        raw: Floats = nodes.pick(request.memo[_RAW])
        return raw

    def normalize(self, request: Request, scores: Floats, feasible: Bools) -> Floats:
        most = float(scores.max(initial=-np.inf, where=feasible))
        least = float(scores.min(initial=np.inf, where=feasible))
        if not most > least:
            return np.zeros(len(scores))
        # This order of operations rounds as kube-scheduler does.
        normal: Floats = np.floor(100.0 * ((scores - least) / (most - least)))
        return normal


def _keys(terms: tuple[PodTerm, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(term.topology_key for term in terms))


def _refused_by_affinity(request: Request, state: ClusterState) -> Bools | None:
    """Return the (N,) mask of nodes that the pod's required affinity refuses."""
    terms, pod = request.shape.affinity, request.pod
    if not terms:
        return None
    matchers = tuple(Matcher.of(term, pod.namespace) for term in terms)
    friends = np.flatnonzero(state.neighbours.matching(state, matchers))
    together = [in_same_domain(state, term.topology_key, friends) for term in terms]
    alone = not any(rows.any() for rows in together)
    if alone and all(matcher.matches(pod, state.namespaces) for matcher in matchers):
        together = [state.label(term.topology_key)[0] >= 0 for term in terms]
    away: Bools = ~np.logical_and.reduce(together)
    return away


def _refused_by_anti_affinity(request: Request, state: ClusterState) -> Bools | None:
    """Return the (N,) mask of nodes that the pod's required anti-affinity refuses."""
    terms, pod = request.shape.anti_affinity, request.pod
    if not terms:
        return None
    near: Bools = np.zeros(len(state.reports), np.bool_)
    for term in terms:
        foes = state.neighbours.matching(state, (Matcher.of(term, pod.namespace),))
        near |= in_same_domain(state, term.topology_key, np.flatnonzero(foes))
    return near


def _repelled(request: Request, state: ClusterState) -> Bools | None:
    """Return the (N,) mask of nodes that the anti-affinity of placed pods refuses; None if no term selects this pod."""
    repelled: Bools | None = None
    rules = state.neighbours
    for rule in rules.terms_selecting(rules.repelling, request.pod, state):
        holders = rules.repelling[rule]
        near = in_same_domain(state, rule.topology_key, np.fromiter(holders, np.intp, len(holders)))
        repelled = near if repelled is None else repelled | near
    return repelled


def _own_preferences(request: Request, state: ClusterState) -> Iterator[_Wish]:
    for term in request.shape.preferred_affinity:
        counts = state.neighbours.matching(state, (Matcher.of(term, request.pod.namespace),))
        if counts.any():
            yield term.topology_key, term.weight, counts


def _preferences_of_placed_pods(request: Request, state: ClusterState, hard_weight: int) -> Iterator[_Wish]:
    """Yield the terms of placed pods that select this pod, each with the number of placed pods per node that have it.

    These are preferred terms and, unless `hard_weight` is 0, required affinity terms.
    """
    rules = state.neighbours
    for stated in (rules.preferring, rules.attracting) if hard_weight else (rules.preferring,):
        for rule in rules.terms_selecting(stated, request.pod, state):
            holders = stated[rule]
            counts = np.zeros(len(state.reports), np.int64)
            counts[np.fromiter(holders, np.intp, len(holders))] = np.fromiter(holders.values(), np.int64, len(holders))
            yield rule.topology_key, rule.weight or hard_weight, counts
