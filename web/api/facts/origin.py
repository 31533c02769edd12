"""Who states a fact of a node, and since when.

Rule: amounts are Kubernetes quantities. `source` names who said it; `observedAt` is when, the time of the import where
the source gives none; `ageSeconds` counts from there.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from hetsched.contracts.times import rfc3339
from hetsched.contracts.units import format_amount
from hetsched.inventory.facts import AGENT
from hetsched.inventory.models import Node
from hetsched.inventory.node_facts import NodeFacts
from web.api.documents import Document


class Origin(Document, frozen=True):
    """Who stated a group of facts, and when."""

    source: str
    observed_at: str
    age_seconds: float


def origin(node: Node, now: datetime, *, source: str = "", observed_at: str = "") -> Origin:
    """Return who stated facts of this node; without its own time a fact is as old as the report."""
    at = observed_at or node.report.observed_at or rfc3339(node.updated_at)
    try:
        seen = msgspec.convert(at, type=datetime)
    except msgspec.ValidationError:
        seen, at = node.updated_at, rfc3339(node.updated_at)
    if seen.tzinfo is None:
        seen, at = node.updated_at, rfc3339(node.updated_at)
    age = round(max((now - seen).total_seconds(), 0.0), 1)
    return Origin(source or node.report.source or "file", at, age)


def source_of(node: Node, fact: str) -> str:
    """Return who is believed of a fact, empty where it is whoever reported the node."""
    row = stated(node)
    said = row.claims.get(fact, ()) if row is not None else ()
    return AGENT if any(one.current and one.source == AGENT for one in said) else ""


def stated(node: Node) -> NodeFacts | None:
    """Return what is said of a node beside its report, None where nothing is."""
    return getattr(node, "facts", None)


def quantities(amounts: dict[str, int]) -> dict[str, str]:
    """Write amounts in base units as quantities, by name."""
    return {name: format_amount(name, amount) for name, amount in sorted(amounts.items())}
