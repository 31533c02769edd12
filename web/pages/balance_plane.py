"""The pictures of the balance page: every node as a dot between CPU and memory, and the balance over time.

Rule: a dot on the diagonal uses as much of its CPU as of its memory; the further off, the less even. The trend is of
the figures that are taken every minute, the last day at most. The tables below both have the same figures.
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
# What a name takes of the plane, whose sides are 100.
NAME_WIDTH, NAME_HEIGHT = 40, 4


class Dot(msgspec.Struct, frozen=True):
    """One node; `x` and `y` are percent of CPU and memory, `y` from above, as pictures have it.

    `name_y`: how high its name stands, None for a dot without one.
    """

    name: str
    x: float
    y: float
    said: str
    name_y: float | None


class Trend(msgspec.Struct, frozen=True):
    """The balance of a cluster, the oldest figure first; `line` is a polyline between `low` and 1."""

    points: list[tuple[datetime, float]]
    line: str
    low: float


def dots(nodes: Sequence[dict[str, Any]]) -> list[Dot]:
    """Return a dot for each of the least even nodes that state CPU and memory; the first few carry their names."""
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
    """Return the height nearest to a dot's own where its name covers no other one."""
    near = [dot.name_y for dot in named if dot.name_y is not None and abs(dot.x - x) < NAME_WIDTH]
    heights = (y + lines * NAME_HEIGHT for lines in (0, -1, 1, -2, 2))
    return next(height for height in heights if all(abs(height - other) >= NAME_HEIGHT for other in near))


def trend(cluster: Cluster, now: datetime) -> Trend | None:
    """Return how the balance went, None where fewer than two figures were taken."""
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
    return Trend(points, line, low)
