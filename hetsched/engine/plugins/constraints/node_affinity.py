"""Place a pod on nodes that it selects by label, field or name.

Rule: a node fits if it has every label of nodeSelector and matches at least one required affinity term. If the pod sets
nodeName, only that node fits. Preferred terms give the score, where raw is the sum of the weights of the terms that the
node matches:
    score = floor(100 * raw / largest raw of a feasible node)
Source: kube-scheduler's NodeAffinity and NodeName plugins.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.node_constraints import Expression
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import Bools, Floats, Window
from hetsched.engine.cluster.selectors import (
    NODE_NAME,
    nodes_named,
    nodes_of_affinity,
    nodes_of_term,
    nodes_with,
    required_nodes,
    term_texts,
)
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.extension_points import Reads
from hetsched.engine.framework.normalization import by_largest
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Refusal, Skip

_PREPARED: StateKey[ClusterState] = StateKey("node-affinity")


@plugin(
    "node-affinity",
    summary="Apply the node selector, and the required and preferred node affinity.",
    reads=Reads.STATIC,
    helped_by=frozenset({Event.NODE_ADDED, Event.NODE_LABELS}),
)
class NodeAffinity:
    def static_key(self, request: Request) -> Hashable:
        shape = request.shape
        return shape.node_selector, shape.node_terms, shape.required_node, shape.preferred_nodes

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip:
        shape = request.shape
        if not shape.node_selector and shape.node_terms is None and not shape.required_node:
            return SKIP
        request.memo[_PREPARED] = state
        return None

    def filter(self, request: Request, nodes: Window) -> Bools:
        state = request.memo[_PREPARED]
        fits = required_nodes(state, request.shape)
        if request.shape.required_node:
            fits &= nodes_named(state, _named(request.shape.required_node))
        return nodes.pick(fits)

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        state = request.memo[_PREPARED]
        shape = request.shape
        if shape.required_node:
            named = f"{NODE_NAME}={shape.required_node}"
            refusal = Refusal(
                "NodeNameMismatch", Message("the pod allows only node {node}", node=shape.required_node), (named,)
            )
            yield refusal, nodes.pick(~nodes_named(state, _named(shape.required_node)))
        for key, value in shape.node_selector:
            label = f"{key}={value}"
            refusal = Refusal("NodeSelectorMismatch", Message("the node has no label {label}", label=label), (label,))
            yield refusal, nodes.pick(~nodes_with(state, Expression(key, "In", (value,))))
        if shape.node_terms is not None:
            texts = term_texts(shape.node_terms)
            message = (
                Message("the node does not match {text}", text=" or ".join(texts))
                if texts
                else Message("the required node affinity has no terms")
            )
            refusal = Refusal("NodeAffinityMismatch", message, texts)
            yield refusal, nodes.pick(~nodes_of_affinity(state, shape.node_terms))

    def waits(self, request: Request) -> Message:
        shape = request.shape
        if shape.required_node:
            return Message("node {node}", node=shape.required_node)
        wanted = [f"{key}={value}" for key, value in shape.node_selector]
        if shape.node_terms:
            wanted.append(" or ".join(term_texts(shape.node_terms)))
        return Message("a node with {text}", text=joined(" and ", wanted))

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        request.memo[_PREPARED] = state
        return None if request.shape.preferred_nodes else SKIP

    def score(self, request: Request, nodes: Window) -> Floats:
        state = request.memo[_PREPARED]
        raw: Floats = np.zeros(len(state.reports))
        for preferred in request.shape.preferred_nodes:
            raw += preferred.weight * nodes_of_term(state, preferred.term)
        return nodes.pick(raw)

    def normalize(self, request: Request, scores: Floats, feasible: Bools) -> Floats:
        return by_largest(scores, feasible)


def _named(name: str) -> Expression:
    return Expression(NODE_NAME, "In", (name,))
