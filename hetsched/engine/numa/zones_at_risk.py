"""NUMA zones whose allocations exceed their capacity, with the pods that have these allocations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.objects.allocation import ZoneGrant
from hetsched.engine.cluster.columns import Ints
from hetsched.engine.cluster.placed_pod import PlacedPod
from hetsched.engine.cluster.state import ClusterState

from .zone_columns import NodeZones


class ZoneAtRisk(NamedTuple):
    """A zone whose capacity fell below its allocations, and the pods that have these allocations."""

    node: str
    zone: str
    short_millis: int
    pods: tuple[str, ...]


def overcommitted(state: ClusterState) -> Iterator[ZoneAtRisk]:
    """Yield the zones whose allocated CPU exceeds their capacity, with their pods, in node and zone order."""
    free: Ints = state.columns.field("zone_cpu_free")
    for row, position in np.argwhere(free.T < 0).tolist():
        facts = state.zones.nodes[row]
        pods = sorted(key for key, b in state.on_row[row].items() if position in _positions(facts, b))
        yield ZoneAtRisk(state.columns.names[row], facts.names[position], -int(free[position, row]), tuple(pods))


def _positions(facts: NodeZones, placed: PlacedPod) -> set[int | None]:
    grants: Sequence[ZoneGrant] = placed.allocation.zones + placed.allocation.predicted
    found = {facts.position(grant.name) for grant in grants}
    return found | {facts.zone_of_cpu.get(cpu) for grant in grants for cpu in parse_cpuset(grant.cpus or "")}
