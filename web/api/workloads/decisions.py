"""`decisions/`: the recorded decisions. A decision never changes after it was written.

The list starts with the latest decision. The document of one decision contains its reasons, the best nodes with every
plugin's score, the policy version and the digest of the snapshot that it used.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from django.db.models import QuerySet
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.contracts.api.decision import (
    Evicted,
    ExpectedUse,
    NearestFit,
    NodeOutcome,
    PolicyRef,
    Reason,
    Tipping,
    Verdict,
)
from hetsched.contracts.errors import InputError, with_path
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.policy import PluginUse
from hetsched.contracts.waits import WaitsFor
from hetsched.placement.models import Decision
from hetsched.placement.queries.decision_matrix import DecisionDetails, details_of, matrix_of
from hetsched.placement.queries.redaction import Redaction

from .. import request_scope
from ..documents import Document, page_of
from ..pagination import LIST_QUERIES, flag
from ..problems import RequestRefused, not_found
from ..resources import ResourceView
from ..views import ApiView, answer
from ..whatif.what_if import simulation_slot

MOST_SCORING = 8000
_ROW = (
    "id", "cluster__name", "workload_id", "namespace", "pod_name", "verdict", "node_name", "policy_name",
    "policy_version", "score", "summary", "created_at",
)  # fmt: skip


class DecisionRow(Document, frozen=True):
    """Decision in a list."""

    id: int
    cluster: str
    workload: str | None
    pod: str
    verdict: str
    node: str | None
    policy: PolicyRef
    score: float | None
    summary: str
    created_at: Any


class DecisionDetail(Document, frozen=True):
    """Decision with its inputs; `podId` is the id for `pods/{id}/why/`.

    `nominatedNode` is the node that is nominated for the pod while it waits for `evictions`. `nearestFit`, `tipping`
    and `expectedUse` are null unless requested and still computable. `waitsFor` are the events that may make a rejected
    pod schedulable; for the latest decision of a pod, the events that it has been waiting for since `triedAt`.
    """

    id: int
    cluster: str
    workload: str | None
    pod: str
    pod_id: int
    verdict: str
    node: str | None
    policy: PolicyRef
    policy_rule: str
    score: float | None
    summary: str
    reasons: tuple[Reason, ...]
    nearest_fit: tuple[NearestFit, ...] | None
    tipping: Tipping | None
    expected_use: ExpectedUse | None
    nodes: tuple[NodeOutcome, ...]
    evictions: tuple[Evicted, ...]
    nominated_node: str | None
    waits_for: tuple[WaitsFor, ...]
    tried_at: Any
    allocation: Allocation | None
    snapshot: str
    cluster_revision: int
    inventory_revision: int
    created_at: Any


class DecisionsView(ResourceView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {
        **LIST_QUERIES,
        "cluster": "Only decisions of this cluster.",
        "workload": "Only decisions about this workload's pods.",
        "namespace": "Only decisions about pods of this namespace.",
        "pod": "Only decisions about pods of this name.",
        "verdict": "Only decisions with this verdict.",
        "node": "Only placements on this node.",
    }
    kinds: ClassVar = {"verdict": {"type": "string", "enum": [verdict.value for verdict in Verdict]}}
    ordering = "-id"
    filters: ClassVar = {
        "cluster": "cluster__name", "workload": "workload_id", "namespace": "namespace", "pod": "pod_name",
        "verdict": "verdict", "node": "node_name",
    }  # fmt: skip

    def get_queryset(self) -> QuerySet[Any]:
        return request_scope.decisions(self.subject).values(*_ROW)

    def document(self, row: dict[str, Any]) -> DecisionRow:
        return _row(row, self.redaction)

    @extend_schema(responses=page_of(DecisionRow))
    def get(self, request: Any) -> HttpResponse:
        """List decisions, latest first."""
        return self.list(request)


def _row(values: dict[str, Any], redaction: Redaction) -> DecisionRow:
    return DecisionRow(
        id=values["id"],
        cluster=values["cluster__name"],
        workload=values["workload_id"],
        pod=f"{values['namespace']}/{values['pod_name']}",
        verdict=values["verdict"],
        node=values["node_name"] or None,
        policy=PolicyRef(values["policy_name"], values["policy_version"]),
        score=values["score"],
        summary=redaction.summary(values["summary"]),
        created_at=values["created_at"],
    )


class DecisionView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {
        "explain": "true computes every node with the score of every plugin.",
        "scoring": "With explain: JSON list of additional score plugins, written as in a policy.",
        "nearestFit": "true computes changes that would place a rejected pod, or weights at which another node wins.",
    }

    @extend_schema(responses=DecisionDetail)
    def get(self, request: Any, decision_id: int) -> HttpResponse:
        """Show a decision with reasons and its best nodes, or all nodes; 410 if their data has been deleted."""
        rows = request_scope.decisions(self.subject).select_related("cluster", "pod")
        decision = rows.filter(pk=decision_id).first()
        if decision is None:
            raise self._deleted_response(decision_id)
        nodes, found = decision.top, None
        with_matrix, with_details = flag(request, "explain"), flag(request, "nearestFit")
        scoring = _scoring(request.GET.get("scoring", "")) if with_matrix else []
        if with_matrix or with_details:
            with simulation_slot():  # each of the two loads the whole state of the cluster
                nodes = _matrix(decision, scoring, self.redaction) if with_matrix else nodes
                found = _further(decision) if with_details else None
        return answer(request, _detail(decision, nodes, found, self.redaction))

    def _deleted_response(self, decision_id: int) -> RequestRefused:
        rows = request_scope.deleted_decisions(self.subject)
        kept = rows.filter(pk=decision_id).first()
        if kept is None:
            return not_found("decision", decision_id)
        return RequestRefused(
            410,
            "DecisionExpired",
            Message(
                "only the summary of this decision is stored: {detail}", detail=self.redaction.summary(kept.summary)
            ),
        )


def _scoring(text: str) -> list[PluginUse]:
    """Parse the query parameter with additional scoring plugins. Raises: InputError."""
    if not text:
        return []
    try:
        found = msgspec.json.decode(text[:MOST_SCORING].encode(), type=list[PluginUse])
    except msgspec.DecodeError as error:  # also catches its subclass ValidationError (wrong type)
        hint = 'Send JSON such as [{"name": "binpack", "weight": 1}]'
        text = Message("the value is not a list of plugins: {detail}", detail=with_path(error))
        raise InputError("QueryInvalid", text, place="scoring", hint=hint) from None
    return [use if use.weight else msgspec.structs.replace(use, weight=1.0) for use in found]


def _matrix(decision: Decision, scoring: list[PluginUse], redaction: Redaction) -> tuple[NodeOutcome, ...]:
    try:
        return matrix_of(decision, scoring=scoring)
    except InputError as error:
        if error.code != "DecisionExpired":
            raise
        detail = joined(". ", [error.message, redaction.summary(decision.summary)])
        raise RequestRefused(410, error.code, detail, hint=error.hint) from None


def _further(decision: Decision) -> DecisionDetails | None:
    try:
        return details_of(decision)
    except InputError:
        return None


def _detail(
    decision: Decision, nodes: tuple[NodeOutcome, ...], found: DecisionDetails | None, redaction: Redaction
) -> DecisionDetail:
    latest = decision.pod.decision_id == decision.pk and decision.pod.state == decision.verdict
    return DecisionDetail(
        id=decision.pk,
        cluster=decision.cluster.name,
        workload=decision.workload_id,
        pod=f"{decision.namespace}/{decision.pod_name}",
        pod_id=decision.pod_id,
        verdict=decision.verdict,
        node=decision.node_name or None,
        policy=PolicyRef(decision.policy_name, decision.policy_version),
        policy_rule=decision.policy_rule,
        score=decision.score,
        summary=redaction.summary(decision.summary),
        reasons=redaction.reasons(decision.reasons),
        nearest_fit=found.nearest_fit if found else None,
        tipping=found.tipping if found else None,
        expected_use=found.expected_use if found else None,
        nodes=nodes,
        evictions=redaction.evictions(decision.evictions),
        nominated_node=decision.nominated_node or None,
        waits_for=decision.pod.waits_for if latest else decision.waits_for,
        tried_at=decision.pod.tried_at if latest else None,
        allocation=decision.allocation,
        snapshot=redaction.snapshot(decision.snapshot),
        cluster_revision=decision.cluster_revision,
        inventory_revision=decision.inventory_revision,
        created_at=decision.created_at,
    )


routes = [
    path("decisions/", DecisionsView.as_view()),
    path("decisions/<int:decision_id>/", DecisionView.as_view()),
]
