"""Which nodes a term means, by their labels and names.

Rule: what one requirement means is `contracts.labels.fits`. Required node terms are ORed;
a term without requirements matches nothing. Nodes share label values, so each distinct value is asked once and a
node's answer is a look-up by value id.
Source: Kubernetes documentation, "Labels and Selectors" and "Assigning Pods to Nodes"; component-helpers/nodeaffinity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hetsched.contracts.labels import fits
from hetsched.contracts.workload import Expression, NodeTerm, Shape

from .columns import Bools

if TYPE_CHECKING:
    from .state import ClusterState

NODE_NAME = "metadata.name"

_SIGN = {"In": "in", "NotIn": "not in", "Gt": ">", "Lt": "<"}


def expression_text(expression: Expression) -> str:
    """Write one requirement for people: `disk=ssd`, `rack > 2`, `no zone`."""
    if expression.operator in ("Exists", "DoesNotExist"):
        return expression.key if expression.operator == "Exists" else f"no {expression.key}"
    if expression.operator == "In" and len(expression.values) == 1:
        return f"{expression.key}={expression.values[0]}"
    return f"{expression.key} {_SIGN.get(expression.operator, expression.operator)} {', '.join(expression.values)}"


def nodes_with(state: ClusterState, expression: Expression) -> Bools:
    """Return (N,) which nodes' labels meet one requirement."""
    ids, values = state.label(expression.key)
    # A node without the label has id -1, which picks the last entry.
    table = [fits(expression, value) for value in values.values] + [fits(expression, None)]
    met: Bools = np.array(table, np.bool_)[ids]
    return met


def nodes_named(state: ClusterState, expression: Expression) -> Bools:
    """Return (N,) which nodes meet a field requirement; only `metadata.name` with In or NotIn can be met."""
    named = np.zeros(len(state.reports), np.bool_)
    if expression.key != NODE_NAME or expression.operator not in ("In", "NotIn"):
        return named
    for name in expression.values:
        row = state.row_of.get(name)
        if row is not None:
            named[row] = True
    return named if expression.operator == "In" else ~named


def nodes_of_term(state: ClusterState, term: NodeTerm) -> Bools:
    """Return (N,) which nodes meet every requirement of a term."""
    count = len(state.reports)
    if not term.expressions and not term.fields:
        return np.zeros(count, np.bool_)
    met: Bools = np.ones(count, np.bool_)
    for expression in term.expressions:
        met &= nodes_with(state, expression)
    for expression in term.fields:
        met &= nodes_named(state, expression)
    return met


def nodes_of_terms(state: ClusterState, terms: tuple[NodeTerm, ...]) -> Bools:
    """Return (N,) which nodes meet at least one term."""
    met: Bools = np.zeros(len(state.reports), np.bool_)
    for term in terms:
        met |= nodes_of_term(state, term)
    return met


def required_nodes(state: ClusterState, shape: Shape) -> Bools:
    """Return (N,) which nodes the shape's nodeSelector and required node affinity allow."""
    met: Bools = np.ones(len(state.reports), np.bool_)
    for key, value in shape.node_selector:
        met &= nodes_with(state, Expression(key, "In", (value,)))
    if shape.node_terms is not None:
        met &= nodes_of_terms(state, shape.node_terms)
    return met
