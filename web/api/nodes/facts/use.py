"""The balance of a node and its use by resource."""

from __future__ import annotations

from datetime import datetime

from hetsched.contracts.units import format_amount
from hetsched.inventory.models import Node
from web.api.documents import Document

from .origin import Origin, origin


class ResourceUse(Document, frozen=True):
    """One resource: `used` is the last sample plus the pods placed since, or the requests if there is no sample.

    `ratio` is used / allocatable, clamped to 0-1.
    """

    allocatable: str
    requested: str
    measured: str | None
    used: str
    ratio: float


class BalanceFacts(Document, frozen=True):
    """Balance of a node's use: `balance` is 1 - population variance of the ratios, 1 with fewer than two.

    `stale`: the sample is too old; requests are used instead.
    """

    origin: Origin
    resources: dict[str, ResourceUse]
    balance: float
    stale: bool = False


def balance_facts(
    node: Node, used: dict[str, int], balance: float, now: datetime, *, stale: bool = False
) -> BalanceFacts:
    """Return a node's use by resource; `used`, `balance` and `stale` are the engine's."""
    usage = node.report.usage
    measured = usage.amounts if usage else {}
    resources = {
        name: ResourceUse(
            allocatable=format_amount(name, whole),
            requested=format_amount(name, node.requested.get(name, 0)),
            measured=format_amount(name, measured[name]) if name in measured else None,
            used=format_amount(name, max(amount, 0)),
            ratio=round(min(max(amount / whole, 0.0), 1.0), 6),
        )
        for name, amount in used.items()
        if (whole := node.allocatable.get(name, 0))
    }
    if usage is None or stale:
        return BalanceFacts(origin(node, now, source="requests"), resources, round(balance, 6), stale)
    sampled = origin(node, now, source=usage.source or "usage", observed_at=usage.observed_at)
    return BalanceFacts(sampled, resources, round(balance, 6))
