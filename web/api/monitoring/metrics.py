"""`metrics/`: balance and utilisation of a cluster, and pods at risk, computed with the engine's formulas."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.contracts.units import CPU, format_amount
from hetsched.engine.cluster.balance import ClusterMetrics, cluster_metrics, node_balance
from hetsched.engine.numa.zones_at_risk import overcommitted
from hetsched.inventory.models import Cluster
from hetsched.placement.scheduler_cache import cache_of

from .. import request_scope
from ..documents import Document
from ..views import ApiView, answer


class LoadSource(Document, frozen=True):
    """Collector of measured resource use: whether the scheduler uses its samples, and if not, since when and why.

    `nodes` is the number of nodes with samples, `nodesStale` the number whose samples have expired.
    """

    name: str
    kind: str
    up: bool
    answered_at: datetime | None
    stale_since: datetime | None
    failure: str
    nodes: int
    nodes_stale: int
    problems: list[str]


class BalanceDetail(Document, frozen=True):
    """Metrics of a cluster at one revision; `gpuFragmentation` is computed for the mix of running pods.

    `byRequests` names the nodes whose requests are used because their measured use is too old.
    """

    cluster: str
    revision: int
    metrics: ClusterMetrics
    nodes: dict[str, float]
    by_requests: list[str]
    sources: list[LoadSource]


class ClusterBalanceView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = request_scope.CLUSTER_QUERY

    @extend_schema(responses=BalanceDetail)
    def get(self, request: Any) -> HttpResponse:
        """Show utilisation, GPU fragmentation and balance, of the cluster and of every node."""
        cluster = request_scope.selected_cluster(request)
        with cache_of(cluster.pk).locked_snapshot() as loaded:
            state = loaded.state
            figures = cluster_metrics(state, [placed.pod for placed in state.placed_pods.values()])
            degrees = [round(degree, 6) for degree in node_balance(state).tolist()]
            nodes = dict(zip(state.columns.names, degrees, strict=True))
            revision, late = loaded.revision, state.stale()
        return answer(request, BalanceDetail(cluster.name, revision, figures, nodes, late, load_sources(cluster)))


def load_sources(cluster: Cluster) -> list[LoadSource]:
    """Return the state of the collectors that measure use."""
    return [
        LoadSource(
            name=row.name,
            kind=row.kind,
            up=row.answered_at is not None and row.stale_since is None,
            answered_at=row.answered_at,
            stale_since=row.stale_since,
            failure=row.failure,
            nodes=row.nodes_reported,
            nodes_stale=row.nodes_stale,
            problems=list(row.problems),
        )
        for row in cluster.collectors.filter(load=True, enabled=True)
    ]


class ZoneShort(Document, frozen=True):
    """NUMA zone whose capacity is `short` (a CPU quantity) smaller than the reservations of its pods. It accepts no new
    pods; the existing reservations remain.
    """

    node: str
    zone: str
    short: str
    pods: list[str]


class AtRiskDetail(Document, frozen=True):
    """NUMA zones of a cluster with less capacity than their pods hold. Each zone lists the pods that the caller may
    see.
    """

    cluster: str
    revision: int
    zones: list[ZoneShort]


class AtRiskView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = request_scope.CLUSTER_QUERY

    @extend_schema(responses=AtRiskDetail)
    def get(self, request: Any) -> HttpResponse:
        """Show the NUMA zones with less capacity than their pods hold, and the pods at risk there."""
        cluster = request_scope.selected_cluster(request)
        with cache_of(cluster.pk).locked_snapshot() as loaded:
            found, revision = list(overcommitted(loaded.state)), loaded.revision
        zones = [
            ZoneShort(
                zone.node,
                zone.zone,
                format_amount(CPU, zone.short_millis),
                [pod for pod in zone.pods if self.subject.may_in(pod.partition("/")[0])],
            )
            for zone in found
        ]
        return answer(request, AtRiskDetail(cluster.name, revision, zones))


routes = [path("metrics/balance/", ClusterBalanceView.as_view()), path("metrics/at-risk/", AtRiskView.as_view())]
