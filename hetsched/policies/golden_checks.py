"""What golden placements say of a policy; nothing is written here.

Rule: a golden placement guards the policy that it names, or all. It is judged by the engine's own cycle on the nodes of
its cluster as they would be empty, with what takes part in every decision there. Nodes are read once as long as they
stay the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import groupby

import structlog
from django.db.models import Q, QuerySet

from hetsched.contracts.golden import GoldenCheck, GoldenPlacementBroken, GoldenState, Judged
from hetsched.contracts.policy import PolicySpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import IMPLIED, Policy, compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.engine.simulation.golden_placements import Golden, empty, judge
from hetsched.inventory.actions import effective_report
from hetsched.inventory.models import Cluster, Node

from .models import GoldenPlacement

_NODE = ("id", "name", "report", "unschedulable")
log = structlog.get_logger(__name__)


def guards_of(name: str, *, cluster: Cluster | None = None) -> QuerySet[GoldenPlacement]:
    """Return the golden placements that a policy of this name has to keep."""
    rows = GoldenPlacement.objects.filter(Q(policy_name=name) | Q(policy_name=""), enabled=True)
    return rows if cluster is None else rows.filter(cluster=cluster)


def check_goldens(spec: PolicySpec, *, cluster: Cluster | None = None) -> GoldenCheck:
    """Judge all that guard a policy, of one cluster or of all, under this content of it."""
    rows = guards_of(spec.name, cluster=cluster)
    return GoldenCheck.of(spec.name, spec.version, judge_rows(spec, rows))


def require_goldens(spec: PolicySpec) -> GoldenCheck:
    """Judge all that guard a policy. Raises: GoldenPlacementBroken when one breaks under this content."""
    found = check_goldens(spec)
    broken = tuple(one for one in found.results if one.state is GoldenState.BROKEN)
    if broken:
        raise GoldenPlacementBroken(spec.name, broken)
    return found


def read_nodes(name: str) -> None:
    """Read what judging a policy of this name needs, so that whoever then holds locks need not."""
    for cluster in Cluster.objects.filter(goldens__in=guards_of(name)).defer("definitions").distinct():
        empty_state(cluster)


def judge_rows(spec: PolicySpec, rows: QuerySet[GoldenPlacement]) -> tuple[Judged, ...]:
    """Judge these golden placements under a policy, in the order of their clusters and names."""
    found = list(
        rows.select_related("cluster").defer("cluster__definitions", "manifest").order_by("cluster_id", "name")
    )
    if not found:
        return ()
    compiled = compile_policy(spec, load_registry(), implied=IMPLIED)
    results: list[Judged] = []
    for _, some in groupby(found, key=lambda row: row.cluster_id):
        of_cluster = list(some)
        results += _judge(empty_state(of_cluster[0].cluster), compiled, of_cluster)
    return tuple(results)


def _judge(state: ClusterState, policy: Policy, rows: Iterable[GoldenPlacement]) -> list[Judged]:
    results: list[Judged] = []
    scheduler = Scheduler(state.fork(), policy)
    for row in rows:
        try:
            results.append(judge(scheduler, Golden(row.name, row.cluster.name, row.pod, row.expectation)))
        except Exception as error:
            log.exception("a golden placement could not be judged", golden=row.name, policy=policy.spec.name)
            got = f"the engine failed: {type(error).__name__}"
            results.append(Judged(row.name, row.cluster.name, GoldenState.BROKEN, str(row.expectation), got))
            scheduler = Scheduler(state.fork(), policy)  # whatever it left behind
    return results


def empty_state(cluster: Cluster) -> ClusterState:
    """Return a cluster's nodes without any pod, which nobody may change: fork it."""
    return _empty_state(cluster.pk, cluster.created_at, basis_of(cluster))


def basis_of(cluster: Cluster) -> str:
    """Name the nodes and definitions that a cluster has now."""
    return f"{cluster.inventory_revision}/{cluster.layout_revision}/{cluster.definitions_revision}"


@lru_cache(maxsize=4)
def _empty_state(cluster_id: int, created_at: datetime, basis: str) -> ClusterState:
    """Read the nodes; the time tells the cluster from one of another database."""
    definitions = Cluster.objects.only("definitions").get(pk=cluster_id).definitions
    reports = [effective_report(node) for node in Node.objects.filter(cluster_id=cluster_id).only(*_NODE)]
    return ClusterState.of(definitions, nodes=empty(reports), running=())


def worst(results: Mapping[str, Judged]) -> tuple[GoldenState, str]:
    """Return how a golden placement stands under several policies, by their names, and what came out."""
    order = [GoldenState.BROKEN, GoldenState.UNKNOWN, GoldenState.KEPT]
    ranked = sorted(results.items(), key=lambda item: (order.index(item[1].state), item[0]))
    if not ranked:
        return GoldenState.UNKNOWN, "no active policy is guarded by it"
    name, first = ranked[0]
    return first.state, first.got if len(results) == 1 else f"{first.got} (policy {name})"
