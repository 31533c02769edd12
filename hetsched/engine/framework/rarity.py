"""Rarity of nodes: find pods that occupy a rare node without needing its rare properties.

Three properties make a node rare, and a pod may need each of them:
    cards   the node has healthy GPUs                    a pod needs it if it requests a GPU
    isa     at most `_FEW` of all nodes can run all      a pod needs it if the number of nodes that can run the pod
            that this node runs, by the ISA lattice      is not greater than the number of these nodes
    size    it has `_LARGE` times the median CPU, or     a pod needs it if it requests whole CPUs in one NUMA
            more zones than the median node              zone, or more CPU than the median node has
A pod is misplaced ("narrow") on a rare node if it needs none of the node's rare properties but another pod does: a
pending pod or, if there is none, a running pod. A rare property that no pod needs does not justify a restart.
Source: the opportunity cost of a placement, as in `isa-scarcity` and `gpu-scarcity`; the thresholds are specific to
hetsched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from hetsched.contracts.objects.workload import IsaDemand, Shape
from hetsched.contracts.units import CPU
from hetsched.engine.cluster.columns import Bools
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.isa.isa_fit import SECOND, run_on
from hetsched.engine.isa.isa_strings import covering_counts
from hetsched.engine.numa.reported_zones import zones_of

_FEW = 0.25
_LARGE = 2.0
PROPERTIES = ("cards", "isa", "size")


class Rarity(msgspec.Struct, frozen=True):
    """Rarity of the nodes: the rare rows by property, and how many nodes cover the instruction set of each row."""

    rows: dict[str, frozenset[int]]
    replacements: list[int]
    median_cpu: float

    def properties(self, row: int) -> tuple[str, ...]:
        return tuple(name for name in PROPERTIES if row in self.rows[name])


def rarity_of(state: ClusterState) -> Rarity:
    """Find the rare nodes of a cluster."""
    nodes = state.all_rows
    cards = (nodes.static("card_milli") > 0).any(axis=0) if nodes.static("card_milli").size else np.zeros(nodes.n, bool)
    offers = nodes.static("isa_offer")
    counts = np.bincount(offers, minlength=len(state.offers.values)).tolist()
    covering = covering_counts(tuple(state.offers.values), tuple(counts))
    replacements = [covering[offer] for offer in offers.tolist()]
    few = max(1, int(_FEW * nodes.n))
    cpu = nodes.static("allocatable")[state.resources.index[CPU]].astype(np.float64)
    zones = np.array([len(zones_of(report)) for report in state.reports])
    median = float(np.median(cpu)) if nodes.n else 0.0
    large = (cpu >= _LARGE * median) | (zones > max(1.0, float(np.median(zones)))) if nodes.n else cards
    # A property that every node has is not rare.
    return Rarity(
        {
            "cards": _unless_all(np.flatnonzero(cards), nodes.n),
            "isa": _unless_all([row for row, count in enumerate(replacements) if count <= few], nodes.n),
            "size": _unless_all(np.flatnonzero(large), nodes.n),
        },
        replacements,
        median,
    )


def _unless_all(rows: Iterable[int], count: int) -> frozenset[int]:
    found = frozenset(int(row) for row in rows)
    return found if len(found) < count else frozenset()


def needs(shape: Shape, row: int, rarity: Rarity, state: ClusterState) -> frozenset[str]:
    """Return the rare properties of a node that the shape needs."""
    found = set()
    if shape.gpu is not None and shape.gpu.count:
        found.add("cards")
    if _runs_on(shape.isa, state) <= rarity.replacements[row]:
        found.add("isa")
    numa = shape.numa
    bound_to_zones = numa is not None and (bool(numa.aware) or numa.cpu_policy != "none")
    if bound_to_zones or shape.request(CPU) > rarity.median_cpu:
        found.add("size")
    return frozenset(found) & frozenset(rarity.properties(row))


def _runs_on(demand: IsaDemand | None, state: ClusterState) -> int:
    """Return the number of nodes that can run an ISA demand."""
    if demand is None or not (demand.is_stated or demand.images):
        return len(state.reports)
    known: dict[IsaDemand, int] = state.once("rarity-runs-on", dict)
    if demand not in known:
        runs = [run_on("lattice", "native-first", demand, offer).rank >= SECOND for offer in state.offers.values]
        nodes = np.bincount(state.all_rows.static("isa_offer"), minlength=len(runs))
        known[demand] = int(nodes[np.array(runs, np.bool_)].sum())
    return known[demand]


class RareDemand(NamedTuple):
    """Pod that may need rare nodes: key, shape, and the (N,) mask of nodes on which it could run."""

    key: str
    shape: Shape
    can_run: Bools


def needed_by(row: int, candidates: Sequence[RareDemand], rarity: Rarity, state: ClusterState) -> dict[str, str]:
    """Return, for each rare property of the node, the first candidate that needs it and could run on the node."""
    found: dict[str, str] = {}
    for candidate in candidates:
        if candidate.can_run[row]:
            for name in needs(candidate.shape, row, rarity, state):
                found.setdefault(name, candidate.key)
    return found


def wastes_rarity(shape: Shape, row: int, source: int, rarity: Rarity, state: ClusterState) -> bool:
    """Return whether moving a pod off row `source` to `row` would waste a rare property of `row`.

    A property is wasted if the pod does not need it and row `source` does not have it.
    """
    return bool(set(rarity.properties(row)) - set(rarity.properties(source)) - needs(shape, row, rarity, state))
