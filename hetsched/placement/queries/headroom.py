"""Headroom of a cluster: how many more copies of common shapes fit now, in every pool.

The copies are counted with the engine's own filters on a copy of the scheduler cache
(`hetsched.engine.simulation.headroom`), under the cluster's policy. A table is valid until the cluster's revision
changes. Recounts are spaced so that counting uses at most 5 % of a core on average. Until the next count the previous
table is returned, which contains the time of its count. Concurrent callers get the previous table. If no copy of a
shape fits a pool, the most frequent reason for which its nodes reject the copy is reported.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import datetime

import msgspec
import numpy as np
from django.utils import timezone

from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import first_rejections
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import Policy
from hetsched.engine.simulation.headroom import Headroom, TrialBudget
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.tiles import FAMILIES, POOL_LABELS
from hetsched.placement.scheduler_cache import cache_of

from .common_shapes import CommonShape, common_shapes

KEPT_SECONDS = 3.0
SHARE = 20
SHAPES_SECONDS = 60.0
PATIENCE_SECONDS = 20.0
# Budget of trial placements per table, about one second of work; counts that are still missing are computed for later
# tables.
MAX_TRIALS = 20_000


class NodePool(msgspec.Struct, frozen=True):
    """A pool of nodes of one ISA family; `selector` contains the labels that select its nodes, or is empty."""

    family: str
    name: str
    nodes: int
    selector: dict[str, str]


class Line(msgspec.Struct, frozen=True):
    """Headroom of one shape by pool: copies that fit, how many of them are emulated, and whether the count is exact.

    `reasons` contains for each pool the reason why no copy fits, or None.
    """

    common: CommonShape
    counts: list[int]
    emulated: list[int]
    exact: list[bool]
    reasons: list[str | None]


class HeadroomCounts(msgspec.Struct, frozen=True):
    """The headroom of a cluster at one revision."""

    revision: int
    policy: str
    policy_version: int
    counted_at: datetime
    pools: list[NodePool]
    lines: list[Line]


class _Counter:
    """Counter of copies for one cluster in this process; it keeps the latest headroom table."""

    def __init__(self, cluster_id: int) -> None:
        self.cluster_id = cluster_id
        self.table: HeadroomCounts | None = None
        self._due = 0.0
        self._counting = threading.Lock()
        self._shapes: list[CommonShape] = []
        self._shapes_due = 0.0
        self._headroom = Headroom()
        self._counted: tuple[ClusterState, Policy] | None = None

    def now(self) -> HeadroomCounts | None:
        """Return the latest table, recounted if due, or None while another thread counts the first table."""
        if self.table is not None and time.monotonic() < self._due:
            return self.table
        patience = 0.0 if self.table is not None else PATIENCE_SECONDS
        if not self._counting.acquire(timeout=patience):
            return self.table
        try:
            if time.monotonic() >= self._due:
                began = time.monotonic()
                self.table = self._count()
                cost = time.monotonic() - began
                self._due = time.monotonic() + max(KEPT_SECONDS, SHARE * cost)
        finally:
            self._counting.release()
        return self.table

    def _count(self) -> HeadroomCounts | None:
        if time.monotonic() >= self._shapes_due:
            self._shapes = common_shapes(self.cluster_id)
            self._shapes_due = time.monotonic() + SHAPES_SECONDS
        copy = cache_of(self.cluster_id)
        with copy.locked_snapshot() as loaded:
            policy, revision = copy.default_policy(), loaded.revision
            if policy is None:
                return None
            old = self.table
            if old is not None and _is_current(old, revision, policy.spec, self._shapes):
                return old
            # Cached node counts are valid for one loaded state under one policy.
            if self._counted is None or self._counted[0] is not loaded.state or self._counted[1] is not policy:
                self._counted, self._headroom = (loaded.state, policy), Headroom()
            state = loaded.state.fork()
        scheduler = Scheduler(state, policy)
        pools, of_row = _pools(self.cluster_id, state)
        budget = TrialBudget(MAX_TRIALS)
        lines = [self._line(scheduler, common, of_row, len(pools), budget) for common in self._shapes]
        return HeadroomCounts(revision, policy.spec.name, policy.spec.version, timezone.now(), pools, lines)

    def _line(
        self, scheduler: Scheduler, common: CommonShape, of_row: np.ndarray, pools: int, budget: TrialBudget
    ) -> Line:
        found = self._headroom.count(scheduler, common.pod, budget)
        counts = np.bincount(of_row, weights=found.counts, minlength=pools).astype(np.int64)
        emulated = np.bincount(of_row, weights=found.counts * found.emulated, minlength=pools).astype(np.int64)
        guessed = np.bincount(of_row, weights=~found.exact, minlength=pools)
        reasons = _reasons(scheduler, common.pod, of_row, pools) if not counts.all() else [None] * pools
        return Line(
            common,
            counts.tolist(),
            emulated.tolist(),
            (guessed == 0).tolist(),
            [None if count else reason for count, reason in zip(counts.tolist(), reasons, strict=True)],
        )


def _is_current(old: HeadroomCounts, revision: int, policy: PolicySpec, shapes: list[CommonShape]) -> bool:
    deciding = (old.policy, old.policy_version) == (policy.name, policy.version)
    return old.revision == revision and deciding and [line.common for line in old.lines] == shapes


def _pools(cluster_id: int, state: ClusterState) -> tuple[list[NodePool], np.ndarray]:
    """Return the pools in the order of the node grid, and the pool index of each node of the state, shape (nodes,)."""
    rows = Node.objects.filter(cluster_id=cluster_id).values_list("name", "isa_family", "pool")
    known = {name: (family, pool) for name, family, pool in rows}
    keys = [known.get(report.name, ("unknown", "")) for report in state.reports]
    order = sorted(set(keys), key=lambda key: (FAMILIES.index(key[0]) if key[0] in FAMILIES else len(FAMILIES), key[1]))
    places = {key: place for place, key in enumerate(order)}
    of_row = np.array([places[key] for key in keys], np.intp)
    sizes = Counter(keys)
    first = dict(zip(reversed(keys), reversed(state.reports), strict=True))
    pools = [NodePool(*key, sizes[key], _selector(key[1], first[key].labels)) for key in order]
    return pools, of_row


def _selector(pool: str, labels: dict[str, str]) -> dict[str, str]:
    return next(({label: pool} for label in POOL_LABELS if labels.get(label) == pool), {})


def _reasons(scheduler: Scheduler, pod: PodSpec, of_row: np.ndarray, pools: int) -> list[str | None]:
    """Return for each pool the most frequent reason why its nodes reject the pod, or None if no node rejects it.

    Each node is counted for the first filter that rejects it. `of_row` is the pool index of each node, shape (nodes,).
    """
    best: list[tuple[int, str | None]] = [(0, None)] * pools
    for reason, rows in first_rejections(scheduler, scheduler.state.compile(pod)):
        for pool, count in enumerate(np.bincount(of_row[rows], minlength=pools).tolist()):
            if count > best[pool][0]:
                best[pool] = (count, reason.message)
    return [message for _, message in best]


_counters: dict[int, _Counter] = {}
_counters_lock = threading.Lock()


def headroom(cluster: Cluster) -> HeadroomCounts | None:
    """Return the headroom table of a cluster, or None during the first count or without an active policy."""
    with _counters_lock:
        counter = _counters.setdefault(cluster.pk, _Counter(cluster.pk))
    return counter.now()
