"""Sources of node facts and their times.

Amounts are Kubernetes quantities. `source` names the reporter; `observedAt` is the time of the observation, or the time
of the import if the source does not give one. `ageSeconds` is the time since then.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from hetsched.contracts.times import rfc3339
from hetsched.contracts.units import format_amount
from hetsched.inventory.facts import AGENT
from hetsched.inventory.models import Node
from hetsched.inventory.models.node_facts import NodeFacts
from web.api.documents import Document


class Origin(Document, frozen=True):
    """Source and time of a group of facts."""

    source: str
    observed_at: str
    age_seconds: float


def origin(node: Node, now: datetime, *, source: str = "", observed_at: str = "") -> Origin:
    """Return the source and time of a node's facts; without `observed_at`, the time of the node's report is used."""
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
    """Return "agent" if the accepted value of a fact is from the agent, or "" if it is from the node's report."""
    row = stated(node)
    said = row.claims.get(fact, ()) if row is not None else ()
    return AGENT if any(item.current and item.source == AGENT for item in said) else ""


def stated(node: Node) -> NodeFacts | None:
    """Return the node's row of facts that are stored in addition to its report, or None if there is none."""
    return getattr(node, "facts", None)


def quantities(amounts: dict[str, int]) -> dict[str, str]:
    """Format amounts in base units as quantities, by name."""
    return {name: format_amount(name, amount) for name, amount in sorted(amounts.items())}
