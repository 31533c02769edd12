"""Export of selectors in Kubernetes form, the inverse of `objects.selectors`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hetsched.contracts.objects.node_constraints import Expression, NodeTerm
from hetsched.contracts.objects.workload import LabelSelector

Plain = dict[str, Any]


def expressions(found: Iterable[Expression]) -> list[Plain]:
    """Format the requirements in a selector."""
    return [{"key": e.key, "operator": e.operator} | ({"values": list(e.values)} if e.values else {}) for e in found]


def node_term(term: NodeTerm) -> Plain:
    """Format one node selector term."""
    parts = (("matchExpressions", term.expressions), ("matchFields", term.fields))
    return {name: expressions(part) for name, part in parts if part}


def label_selector(selector: LabelSelector) -> Plain:
    """Format a label selector."""
    return {"matchExpressions": expressions(selector.expressions)} if selector.expressions else {}
