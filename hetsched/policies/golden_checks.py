"""Check golden placements under a policy, without writing.

A golden placement guards the policy that it names, or all policies: the engine must place its pod as expected under
these policies. The engine schedules the pod on the cluster's nodes as if the nodes were empty, with the plugins that
are part of every decision in that cluster. The states of empty nodes are cached while the nodes do not change. A golden
placement that was created from a decision is checked on the cluster state of that decision instead (`golden_states`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import groupby

import structlog
from django.db.models import Q, QuerySet

from hetsched.contracts.api.golden import GoldenCheck, GoldenPlacementBroken, GoldenState, GoldenVerdict
from hetsched.contracts.message import Message
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import Policy, compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.engine.simulation.golden_placements import Golden, empty, judge
from hetsched.inventory.actions import effective_report
from hetsched.inventory.models import Cluster, Node

from .golden_states import state_of
from .models import GoldenPlacement

_NODE = ("id", "name", "report", "unschedulable")
log = structlog.get_logger(__name__)


def goldens_of_policy(name: str, *, cluster: Cluster | None = None) -> QuerySet[GoldenPlacement]:
    """Return the golden placements that the policy of this name must satisfy."""
    rows = GoldenPlacement.objects.filter(Q(policy_name=name) | Q(policy_name=""), enabled=True)
    return rows if cluster is None else rows.filter(cluster=cluster)


def check_goldens(spec: PolicySpec, *, cluster: Cluster | None = None) -> GoldenCheck:
    """Check the golden placements that guard this policy, in one cluster or in all clusters."""
    rows = goldens_of_policy(spec.name, cluster=cluster)
    return GoldenCheck.of(spec.name, spec.version, check_rows(spec, rows))


def require_goldens(spec: PolicySpec) -> GoldenCheck:
    """Check all golden placements that guard a policy. Raises: GoldenPlacementBroken if any is broken."""
    found = check_goldens(spec)
    broken = tuple(verdict for verdict in found.results if verdict.state is GoldenState.BROKEN)
    if broken:
        raise GoldenPlacementBroken(spec.name, broken)
    return found


def load_states(name: str) -> None:
    """Load the cluster states that a check of this policy needs, so that none is loaded while locks are held."""
    for cluster in Cluster.objects.filter(goldens__in=goldens_of_policy(name)).defer("definitions").distinct():
        empty_state(cluster)
    for row in goldens_of_policy(name).exclude(decision=None).only("changed_at"):
        state_of(row)


def check_rows(spec: PolicySpec, rows: QuerySet[GoldenPlacement]) -> tuple[GoldenVerdict, ...]:
    """Check these golden placements under a policy, ordered by cluster and name."""
    found = list(
        rows.select_related("cluster").defer("cluster__definitions", "manifest").order_by("cluster_id", "name")
    )
    if not found:
        return ()
    compiled = compile_policy(spec, load_registry(), implied=True)
    results: list[GoldenVerdict] = []
    for (_, decision), some in groupby(found, key=lambda row: (row.cluster_id, row.decision and row.pk)):
        same = list(some)
        state = empty_state(same[0].cluster) if decision is None else state_of(same[0])
        results += _check_row(state, compiled, same)
    return tuple(results)


def _check_row(state: ClusterState, policy: Policy, rows: Iterable[GoldenPlacement]) -> list[GoldenVerdict]:
    results: list[GoldenVerdict] = []
    scheduler = Scheduler(state.fork(), policy)
    for row in rows:
        try:
            results.append(judge(scheduler, Golden(row.name, row.cluster.name, row.pod, row.expectation)))
        except Exception as error:
            log.exception("golden placement check failed", golden=row.name, policy=policy.spec.name)
            got = Message("the engine failed: {name}", name=type(error).__name__)
            results.append(GoldenVerdict(row.name, row.cluster.name, GoldenState.BROKEN, row.expectation.words, got))
            scheduler = Scheduler(state.fork(), policy)  # the failed call may have left the state inconsistent
    return results


def empty_state(cluster: Cluster) -> ClusterState:
    """Return a cluster's nodes without any pod. The state is shared: fork it before use."""
    return _empty_state(cluster.pk, cluster.created_at, inventory_key(cluster))


def inventory_key(cluster: Cluster) -> str:
    """Return a cache key for a cluster's current nodes and definitions."""
    return f"{cluster.inventory_revision}/{cluster.layout_revision}/{cluster.definitions_revision}"


@lru_cache(maxsize=4)
def _empty_state(cluster_id: int, created_at: datetime, basis: str) -> ClusterState:
    """Build the state from the stored nodes.

    `created_at` and `basis` (the inventory key) are only part of the cache key. `created_at` distinguishes the cluster
    from one with the same id in another database.
    """
    definitions = Cluster.objects.only("definitions").get(pk=cluster_id).definitions
    reports = [effective_report(node) for node in Node.objects.filter(cluster_id=cluster_id).only(*_NODE)]
    return ClusterState.of(definitions, nodes=empty(reports), running=())


def worst_result(results: Mapping[str, GoldenVerdict]) -> tuple[GoldenState, Message]:
    """Return the worst state among the results of one golden placement under several policies, and its message."""
    order = [GoldenState.BROKEN, GoldenState.UNKNOWN, GoldenState.KEPT]
    ranked = sorted(results.items(), key=lambda item: (order.index(item[1].state), item[0]))
    if not ranked:
        return GoldenState.UNKNOWN, Message("no active policy is checked against this golden placement")
    name, first = ranked[0]
    if len(results) == 1:
        return first.state, first.got
    return first.state, Message("{detail} (policy {name})", detail=first.got, name=name)
