"""`shadow/`: compare another scheduler's choices with those of hetsched. Nothing is written to the cluster.

The list starts with the latest comparison. A pod whose comparison is pending has no verdict yet. The summary counts
only rows that the caller may see.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.contracts.api.decision import NodeOutcome, PolicyRef, Reason
from hetsched.placement.models import Shadow
from hetsched.placement.queries.shadow_report import WORST, ShadowSummary, summary, worst_choices

from .. import request_scope
from ..documents import Document, page_of
from ..pagination import LIST_QUERIES
from ..resources import ResourceView
from ..views import answer


class ShadowRow(Document, frozen=True):
    """One pod that another scheduler bound. hetsched's policy scores both nodes; `regret` is the score of the node that
    hetsched prefers minus the score of the node that the other scheduler chose.
    """

    id: int
    cluster: str
    pod: str
    scheduler: str
    node: str
    judgement: str | None
    chosen: str | None
    their_score: float | None
    our_score: float | None
    regret: float | None
    rank: int | None
    feasible: int
    summary: str
    bound_at: Any
    judged_at: Any


class ShadowDetail(Document, frozen=True):
    """Shadow comparison with the scores of the chosen node and of hetsched's best nodes, and the reason if hetsched's
    filters reject the chosen node.
    """

    row: ShadowRow
    policy: PolicyRef | None
    refusal: Reason | None
    theirs: NodeOutcome | None
    nodes: tuple[NodeOutcome, ...]


class ShadowReport(Document, frozen=True):
    """Summary of the comparison, with the pods that have the largest score difference."""

    summary: ShadowSummary
    worst: list[ShadowRow]


class ShadowResource(ResourceView):
    """Base of the views of shadow comparisons, limited to pods in the caller's namespaces."""

    noun = "shadow decision"
    lookup_url_kwarg = "shadow_id"
    ordering = "-id"

    def get_queryset(self) -> QuerySet[Shadow]:
        rows, names = Shadow.objects.select_related("cluster"), self.subject.namespaces
        return rows if names is None else rows.filter(namespace__in=names)

    def document(self, row: Shadow) -> ShadowRow:
        return ShadowRow(
            id=row.pk,
            cluster=row.cluster.name,
            pod=row.key,
            scheduler=row.scheduler,
            node=row.node_name,
            judgement=row.judgement or None,
            chosen=row.chosen or None,
            their_score=row.their_score,
            our_score=row.our_score,
            regret=row.regret,
            rank=row.rank,
            feasible=row.feasible,
            summary=row.summary,
            bound_at=row.created_at,
            judged_at=row.judged_at,
        )


class ShadowsView(ShadowResource):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {
        **LIST_QUERIES,
        "cluster": "Only pods in this cluster.",
        "namespace": "Only pods in this namespace.",
        "judgement": "Only pods with this result: same, equal, worse or infeasible.",
        "node": "Only pods on this node.",
    }
    filters: ClassVar = {
        "cluster": "cluster__name", "namespace": "namespace", "judgement": "judgement", "node": "node_name",
    }  # fmt: skip

    def get_queryset(self) -> QuerySet[Shadow]:
        return super().get_queryset().defer("spec", "theirs", "top")

    @extend_schema(responses=page_of(ShadowRow))
    def get(self, request: Any) -> HttpResponse:
        """List comparisons, latest first."""
        return self.list(request)


class ShadowReportView(ShadowResource):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = request_scope.CLUSTER_QUERY

    @extend_schema(responses=ShadowReport)
    def get(self, request: Any) -> HttpResponse:
        """Show how often both schedulers chose the same node, and the score difference."""
        cluster = request_scope.selected_cluster(request)
        rows = self.get_queryset().filter(cluster=cluster)
        shown = [self.document(row) for row in worst_choices(rows)[:WORST]]
        return answer(request, ShadowReport(summary(cluster, rows), shown))


class ShadowView(ShadowResource):
    actions: ClassVar = {"GET": Action.VIEW}

    @extend_schema(responses=ShadowDetail)
    def get(self, request: Any, shadow_id: int) -> HttpResponse:
        """Show one pod with the scores of the chosen node and of the preferred nodes."""
        found = self.get_object()
        policy = PolicyRef(found.policy_name, found.policy_version) if found.policy_name else None
        return answer(request, ShadowDetail(self.document(found), policy, found.refusal, found.theirs, found.top))


routes = [
    path("shadow/", ShadowsView.as_view()),
    path("shadow/report/", ShadowReportView.as_view()),
    path("shadow/<int:shadow_id>/", ShadowView.as_view()),
]
