"""`metrics/balance/`: how evenly and how fully a cluster is used, by the engine's own formulas."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.engine.balance import ClusterMetrics, cluster_metrics, node_balance
from hetsched.placement.snapshot import warm

from . import reach
from .documents import Document
from .views import ApiView, answer


class BalanceDetail(Document, frozen=True):
    """A cluster's figures at one revision; `gpuFragmentation` is against the mix of what runs."""

    cluster: str
    revision: int
    metrics: ClusterMetrics
    nodes: dict[str, float]


class Balance(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = reach.CLUSTER_QUERY

    @extend_schema(responses=BalanceDetail)
    def get(self, request: Any) -> HttpResponse:
        """Show utilisation, GPU fragmentation and balance, of the cluster and of every node."""
        cluster = reach.cluster_of(request.GET.get("cluster", ""))
        with warm(cluster.pk).held() as loaded:
            state = loaded.state
            figures = cluster_metrics(state, [booking.pod for booking in state.bookings.values()])
            degrees = [round(degree, 6) for degree in node_balance(state).tolist()]
            nodes = dict(zip(state.columns.names, degrees, strict=True))
            revision = loaded.revision
        return answer(request, BalanceDetail(cluster.name, revision, figures, nodes))


routes = [path("metrics/balance/", Balance.as_view())]
