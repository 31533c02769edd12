"""Evaluate node selectors and node affinity terms against the labels and names of the nodes.

`contracts.objects.labels.fits` defines one requirement. Required node terms are ORed; a term without requirements
matches nothing. The values of a label are stored as one array of ids (`ClusterState.label`). A requirement is therefore
evaluated by one index access per value that it names, and one comparison or look-up over the array of all nodes.
Source: Kubernetes documentation, "Labels and Selectors" and "Assigning Pods to Nodes"; component-helpers/nodeaffinity.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from hetsched.contracts.objects.labels import integer
from hetsched.contracts.objects.node_constraints import Expression, NodeTerm
from hetsched.contracts.objects.workload import Shape

from .columns import Bools, Ints, Vocabulary
from .state_view import StateView

NODE_NAME = "metadata.name"
MOST_NAMED = 20  # maximum number of terms or values that a message names
_KEPT = 64
_NEED_LABEL = frozenset({"Exists", "In", "Gt", "Lt"})  # operators that a node without the label never meets

_SIGN = {"In": "in", "NotIn": "not in", "Gt": ">", "Lt": "<"}


def expression_text(expression: Expression) -> str:
    """Format one requirement for messages: `disk=ssd`, `rack > 2`, `no zone`."""
    if expression.operator in ("Exists", "DoesNotExist"):
        return expression.key if expression.operator == "Exists" else f"no {expression.key}"
    if expression.operator == "In" and len(expression.values) == 1:
        return f"{expression.key}={expression.values[0]}"
    values = ", ".join(_first(expression.values))
    return f"{expression.key} {_SIGN.get(expression.operator, expression.operator)} {values}"


def _first(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Shorten a list for a message: its first `MOST_NAMED` texts, then `N more`."""
    more = len(texts) - MOST_NAMED
    return (*texts[:MOST_NAMED], f"{more} more") if more > 0 else texts


def term_text(term: NodeTerm) -> str:
    """Format one term for messages: `disk=ssd and no zone`."""
    return " and ".join(expression_text(expression) for expression in (*term.expressions, *term.fields)) or "nothing"


def term_texts(terms: tuple[NodeTerm, ...]) -> tuple[str, ...]:
    """Format terms for a message: the first `MOST_NAMED` of them, then `N more`."""
    more = len(terms) - MOST_NAMED
    texts = tuple(term_text(term) for term in terms[:MOST_NAMED])
    return (*texts, f"{more} more") if more > 0 else texts


def nodes_with(state: StateView, expression: Expression) -> Bools:
    """Return the (N,) mask of nodes whose labels meet one requirement."""
    ids, values = state.label(expression.key)
    met: Bools
    match expression.operator:
        case "Exists":
            met = ids >= 0
        case "DoesNotExist":
            met = ids < 0
        case "In":
            met = _has_one_of(ids, values, expression.values)
        case "NotIn":
            met = ~_has_one_of(ids, values, expression.values)
        case "Gt" | "Lt" if len(expression.values) == 1:
            bound = integer(expression.values[0])
            numbers, are_numbers = state.label_numbers(expression.key)
            if bound is None:
                return np.zeros(len(ids), np.bool_)
            # A node without the label has id -1, which picks the last entry: not a number, so the node does not match.
            met = (are_numbers & (numbers > bound if expression.operator == "Gt" else numbers < bound))[ids]
        case _:
            met = np.zeros(len(ids), np.bool_)
    return met


def _has_one_of(ids: Ints, values: Vocabulary[str], wanted: tuple[str, ...]) -> Bools:
    """Return the (N,) mask of nodes that have one of the values."""
    known = [values.index[value] for value in wanted if value in values.index]
    if not known:
        return np.zeros(len(ids), np.bool_)
    if len(known) == 1:
        found: Bools = ids == known[0]
        return found
    table: Bools = np.zeros(len(values) + 1, np.bool_)
    table[known] = True
    return table[ids]


def nodes_named(state: StateView, expression: Expression) -> Bools:
    """Return the (N,) mask of nodes that meet a field requirement; only `metadata.name` with In or NotIn can be met."""
    named = np.zeros(len(state.reports), np.bool_)
    if expression.key != NODE_NAME or expression.operator not in ("In", "NotIn"):
        return named
    for name in expression.values:
        row = state.row_of.get(name)
        if row is not None:
            named[row] = True
    return named if expression.operator == "In" else ~named


def nodes_of_term(state: StateView, term: NodeTerm) -> Bools:
    """Return the (N,) mask of nodes that meet every requirement of a term."""
    if not term.expressions and not term.fields:
        return np.zeros(len(state.reports), np.bool_)
    met, *others = [nodes_with(state, expression) for expression in term.expressions] + [
        nodes_named(state, expression) for expression in term.fields
    ]
    for other in others:
        met &= other
    return met


def nodes_of_terms(state: StateView, terms: tuple[NodeTerm, ...]) -> Bools:
    """Return the (N,) mask of nodes that meet at least one term."""
    met: Bools = np.zeros(len(state.reports), np.bool_)
    for term in terms:
        if not _requires_absent_label(state, term):
            met |= nodes_of_term(state, term)
    return met


def _requires_absent_label(state: StateView, term: NodeTerm) -> bool:
    """Return whether a term requires a label that no node has; the check does not visit the nodes."""
    return any(
        expression.operator in _NEED_LABEL and not state.has_label(expression.key) for expression in term.expressions
    )


def nodes_of_affinity(state: StateView, terms: tuple[NodeTerm, ...]) -> Bools:
    """Return the (N,) mask of nodes that meet at least one term of a required node affinity.

    The result is cached, because filters and explanations both need it.
    """
    known: Callable[[tuple[NodeTerm, ...]], Bools] = state.once(
        "nodes-of-affinity", lambda: lru_cache(_KEPT)(partial(nodes_of_terms, state))
    )
    return known(terms)


def required_nodes(state: StateView, shape: Shape) -> Bools:
    """Return the (N,) mask of nodes that the shape's nodeSelector and required node affinity allow."""
    met: Bools = np.ones(len(state.reports), np.bool_)
    for key, value in shape.node_selector:
        met &= nodes_with(state, Expression(key, "In", (value,)))
    if shape.node_terms is not None:
        met &= nodes_of_affinity(state, shape.node_terms)
    return met
