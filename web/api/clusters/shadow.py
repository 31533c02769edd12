"""`shadow/`: choices of another scheduler compared with those of hetsched. Nothing is written to the cluster.

The list is the latest first; a pod whose comparison is pending has no verdict yet. The summary counts only rows that
the caller sees.
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
from hetsched.placement.queries.shadow_report import WORST, ShadowSummary, summary, worst

from .. import request_scope
from ..documents import Document, Rows, page_of
from ..pagination import LIST_QUERIES, page
from ..problems import not_found
from ..views import ApiView, answer


class ShadowRow(Document, frozen=True):
    """One pod that another scheduler bound; scores are of the policy, `regret` is ours - theirs in its points."""

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
    """Shadow comparison with the filter reason for the other node and the scores of its node and of our best nodes."""

    row: ShadowRow
    policy: PolicyRef | None
    refusal: Reason | None
    theirs: NodeOutcome | None
    nodes: tuple[NodeOutcome, ...]


class ShadowReport(Document, frozen=True):
    """Summary of the comparison with the pods of the largest score difference."""

    summary: ShadowSummary
    worst: list[ShadowRow]


def _seen(view: ApiView) -> QuerySet[Shadow]:
    rows, names = Shadow.objects.select_related("cluster"), view.subject.namespaces
    return rows if names is None else rows.filter(namespace__in=names)


class ShadowsView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {
        **LIST_QUERIES,
        "cluster": "Only pods in this cluster.",
        "namespace": "Only pods in this namespace.",
        "judgement": "Only pods with this result: same, equal, worse or infeasible.",
        "node": "Only pods on this node.",
    }

    @extend_schema(responses=page_of(ShadowRow))
    def get(self, request: Any) -> HttpResponse:
        """List comparisons, latest first."""
        rows = request_scope.by_query(
            request,
            _seen(self).defer("spec", "theirs", "top"),
            cluster="cluster__name",
            namespace="namespace",
            judgement="judgement",
            node="node_name",
        )
        found, following = page(request, rows, "id", descending=True)
        return answer(request, Rows([_row(one) for one in found], following))


class ShadowReportView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = request_scope.CLUSTER_QUERY

    @extend_schema(responses=ShadowReport)
    def get(self, request: Any) -> HttpResponse:
        """Show how often both schedulers chose the same node, and the score difference."""
        cluster = request_scope.cluster_of(request.GET.get("cluster", ""))
        rows = _seen(self).filter(cluster=cluster)
        return answer(request, ShadowReport(summary(cluster, rows), [_row(one) for one in worst(rows)[:WORST]]))


class ShadowView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}

    @extend_schema(responses=ShadowDetail)
    def get(self, request: Any, shadow_id: int) -> HttpResponse:
        """Show one pod with the scores of its node and of the preferred nodes."""
        found = _seen(self).filter(pk=shadow_id).first() if shadow_id < 2**63 else None
        if found is None:
            raise not_found("shadow decision", shadow_id)
        policy = PolicyRef(found.policy_name, found.policy_version) if found.policy_name else None
        return answer(request, ShadowDetail(_row(found), policy, found.refusal, found.theirs, found.top))


def _row(one: Shadow) -> ShadowRow:
    return ShadowRow(
        id=one.pk,
        cluster=one.cluster.name,
        pod=one.key,
        scheduler=one.scheduler,
        node=one.node_name,
        judgement=one.judgement or None,
        chosen=one.chosen or None,
        their_score=one.their_score,
        our_score=one.our_score,
        regret=one.regret,
        rank=one.rank,
        feasible=one.feasible,
        summary=one.summary,
        bound_at=one.created_at,
        judged_at=one.judged_at,
    )


routes = [
    path("shadow/", ShadowsView.as_view()),
    path("shadow/report/", ShadowReportView.as_view()),
    path("shadow/<int:shadow_id>/", ShadowView.as_view()),
]
