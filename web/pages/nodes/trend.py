"""Trend of the requested shares and the balance of a node over the last day.

The trend is computed from stored reservations, each of which is counted from its creation until its release, and from
the node's current capacity. Measured use is not stored, so the trend shows requests.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.db.models import Q

from hetsched.engine.cluster.columns import USAGE_RESOURCES
from hetsched.inventory.models import Node
from hetsched.placement.models import Reservation

SPAN = timedelta(hours=24)
POINTS = 49  # one point per half hour of a day, including the first and the last
MOST_RESERVATIONS = 20_000
WIDTH, HEIGHT = 480, 96


class Point(msgspec.Struct, frozen=True):
    """Point of a trend: the requested share of each resource at one time, 0-1, and the resulting balance."""

    at: datetime
    ratios: list[float | None]
    balance: float


class NodeTrend(msgspec.Struct, frozen=True):
    """Trend of the last day, the oldest point first. `lines` has a polyline for each resource, and `balance` is the
    polyline of the balance.
    """

    points: list[Point]
    lines: list[str]
    balance: str
    low: float
    high: float

    @property
    def first_at(self) -> datetime:
        return self.points[0].at

    @property
    def last_at(self) -> datetime:
        return self.points[-1].at


def trend(node: Node, now: datetime) -> NodeTrend | None:
    """Return the trend of a node over the last day, or None if it had no reservations in that time."""
    since = max(now - SPAN, node.cluster.created_at)  # there is no data from before the cluster was created
    rows = Reservation.objects.filter(node=node).filter(Q(released_at=None) | Q(released_at__gt=since))
    spans = list(rows.order_by("-id").values_list("created_at", "released_at", "requests")[:MOST_RESERVATIONS])
    if not spans:
        return None
    step = (now - since) / (POINTS - 1)
    points = [_point(node, since + position * step, spans) for position in range(POINTS)]
    # The balance of shares between 0 and 1 is at least 0.75, so the chart starts there.
    low = min(0.75, *(point.balance for point in points))
    return NodeTrend(
        points=points,
        lines=[_line([point.ratios[at] for point in points], 0.0, 1.0) for at in range(len(USAGE_RESOURCES))],
        balance=_line([point.balance for point in points], low, 1.0),
        low=low,
        high=1.0,
    )


def _point(node: Node, at: datetime, spans: list[tuple[datetime, datetime | None, dict[str, int]]]) -> Point:
    held = [requests for began, ended, requests in spans if began <= at and (ended is None or ended > at)]
    ratios: list[float | None] = []
    for name in USAGE_RESOURCES:
        whole = node.allocatable.get(name, 0)
        used = sum(requests.get(name, 0) for requests in held)
        ratios.append(min(used / whole, 1.0) if whole else None)
    known = [ratio for ratio in ratios if ratio is not None]
    mean = sum(known) / len(known) if known else 0.0
    spread = sum((ratio - mean) ** 2 for ratio in known) / len(known) if len(known) > 1 else 0.0
    return Point(at, ratios, 1.0 - spread)


def _line(values: list[float | None] | list[float], low: float, high: float) -> str:
    """Return the points of a polyline in a box of `WIDTH` x `HEIGHT`, or "" if a value is unknown."""
    if any(value is None for value in values):
        return ""
    width = WIDTH / (len(values) - 1)
    return " ".join(
        f"{position * width:.1f},{HEIGHT - (value - low) / (high - low) * HEIGHT:.1f}"
        for position, value in enumerate(values)
        if value is not None
    )


def table(found: NodeTrend, every: int = 6) -> list[dict[str, Any]]:
    """Return the table rows of a trend: one of every `every` points, the latest first."""
    rows = found.points[::-1][::every]
    return [{"at": point.at, "ratios": point.ratios, "balance": point.balance} for point in rows]
