"""The charts of the balance page: each node as a dot over CPU and memory use, and the balance over time.

A node on the diagonal uses the same share of CPU and memory. The trend has one sample per minute of at most the
last day. The tables below the charts list the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from hetsched.inventory.models import Cluster
from hetsched.policies.models import Measure

MOST_DOTS = 1000
MOST_NAMED = 3
SPAN = timedelta(hours=24)
MOST_POINTS = 96
WIDTH, HEIGHT = 480, 96
# Size of a label on the plane, whose sides are 100.
NAME_WIDTH, NAME_HEIGHT = 40, 4


class Dot(msgspec.Struct, frozen=True):
    """One node; `x` and `y` are percent of CPU and memory, with `y` measured from the top.

    `name_y`: the height of its label, None without a label.
    """

    name: str
    x: float
    y: float
    said: str
    name_y: float | None


class BalanceTrend(msgspec.Struct, frozen=True):
    """The balance of a cluster, the oldest sample first; `line` is a polyline between `low` and 1."""

    points: list[tuple[datetime, float]]
    line: str
    low: float


def dots(nodes: Sequence[dict[str, Any]]) -> list[Dot]:
    """Return dots of the least balanced nodes that report CPU and memory; the first few are labelled."""
    found: list[Dot] = []
    for node in nodes[:MOST_DOTS]:
        (cpu, cpu_said), (memory, memory_said), *_rest = node["cells"]
        if cpu is None or memory is None:
            continue
        said = f"{node['name']}: CPU {cpu_said}, {memory_said}, {node['degree']:.4f}"
        x, y = round(100 * cpu, 2), round(100 - 100 * memory, 2)
        found.append(Dot(node["name"], x, y, said, _free(x, y, found) if len(found) < MOST_NAMED else None))
    return found


def _free(x: float, y: float, named: Sequence[Dot]) -> float:
    """Return the height nearest to the dot at which its label overlaps no other one."""
    near = [dot.name_y for dot in named if dot.name_y is not None and abs(dot.x - x) < NAME_WIDTH]
    heights = (y + lines * NAME_HEIGHT for lines in (0, -1, 1, -2, 2))
    return next(height for height in heights if all(abs(height - other) >= NAME_HEIGHT for other in near))


def trend(cluster: Cluster, now: datetime) -> BalanceTrend | None:
    """Return the trend of the balance; None with fewer than two samples."""
    rows = Measure.objects.filter(cluster=cluster, at__gt=now - SPAN, at__lte=now).order_by("at")
    taken = [(row.at, row.figures.balance) for row in rows if row.figures.balance is not None]
    if len(taken) < 2:
        return None
    step = max(1, -(-len(taken) // MOST_POINTS))
    points = taken[::step] if (len(taken) - 1) % step == 0 else [*taken[::step], taken[-1]]
    low = min(0.75, *(value for _, value in points))
    began, spread = points[0][0], (points[-1][0] - points[0][0]).total_seconds()
    line = " ".join(
        f"{WIDTH * (at - began).total_seconds() / spread:.1f},{HEIGHT * (1 - value) / (1 - low):.1f}"
        for at, value in points
    )
    return BalanceTrend(points, line, low)
