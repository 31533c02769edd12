"""`pods/{id}/why/` and `decisions/{id}/again/`: explanations of a decision.

Both are read-only. Expensive parts (the outlook of a pending pod and the matrix of all nodes) are computed only on
request, on a copy of the current state. A decision is repeated on its recorded state; the response is 410 if that state
has been deleted. Blocking pods in namespaces outside the caller's scope are counted, not named.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpResponse
from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.adapters.objects.export.pods import pod_object
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import joined
from hetsched.placement.models import Pod
from hetsched.placement.queries.decision_check import RerunResult, rerun
from hetsched.placement.queries.why import (
    Changed,
    Gang,
    Outlook,
    PreemptedBy,
    ReasonSpan,
    changes_between,
    decisions_of,
    gang_of,
    outlook,
    preemptions_of,
    spans_of,
)

from .. import request_scope
from ..documents import Document
from ..pagination import flag, integer
from ..problems import RequestRefused, not_found
from ..views import ApiView, answer
from ..whatif.what_if import simulation_slot


class PodWhy(Document, frozen=True):
    """Explanation of a pod: latest decision, pending time by reason, and changes that would help.

    `spans` cover the time since it was submitted; the spans in a pending state add up to `pendingSeconds`. `changed`
    compares the latest attempt with the previous attempt. `preemptedBy` lists the pods that preempted it, the latest
    first. `outlook` is null unless requested for a pending pod.
    """

    id: int
    pod: str
    cluster: str
    workload: str | None
    state: str
    node: str | None
    decision: int | None
    summary: str
    message: str
    pending_seconds: float
    spans: list[ReasonSpan]
    changed: Changed | None
    preempted_by: list[PreemptedBy]
    gang: Gang | None
    outlook: Outlook | None
    manifest: dict[str, Any]


class WhyView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {
        "outlook": "true computes changes that would place a pending pod now, and the pods that block it."
    }

    @extend_schema(responses=PodWhy)
    def get(self, request: Any, pod_id: int) -> HttpResponse:
        """Explain the placement or the pending state of a pod."""
        rows = Pod.objects.select_related("cluster", "node", "decision").defer("node__report")
        pod = request_scope.get_row(rows, "pod", pod_id)
        if not self.subject.may_in(pod.namespace):
            raise not_found("pod", pod_id)
        now = timezone.now()
        decisions = decisions_of(pod)
        spans = spans_of(pod, decisions, now)
        found = None
        if flag(request, "outlook"):
            with simulation_slot():
                found = outlook(pod, now)
        document = PodWhy(
            id=pod.pk,
            pod=pod.key,
            cluster=pod.cluster.name,
            workload=pod.workload_id,
            state=pod.state,
            node=pod.node.name if pod.node else None,
            decision=pod.decision_id,
            summary=self.redaction.summary(pod.decision.summary) if pod.decision else "",
            message=self.redaction.message(pod.message),
            pending_seconds=round(sum(span.seconds for span in spans if span.pending), 3),
            spans=self.redaction.spans(spans),
            changed=self.redaction.changed(changes_between(*decisions[-2:])) if len(decisions) > 1 else None,
            preempted_by=self.redaction.preemptions(preemptions_of([pod])),
            gang=gang_of(pod),
            outlook=found and self.redaction.outlook(found),
            manifest=pod_object(pod.spec, compact=True),
        )
        return answer(request, document)


class DecisionRepeatView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {
        "policy": "Policy to use instead of the policy of the decision.",
        "version": "Version of that policy; default: the active version.",
    }

    @extend_schema(responses=RerunResult)
    def get(self, request: Any, decision_id: int) -> HttpResponse:
        """Repeat a decision on its recorded state and show differences; nothing is written."""
        rows = request_scope.decisions(self.subject).select_related("cluster", "pod")
        decision = request_scope.get_row(rows, "decision", decision_id)
        version = integer(request, "version", 0, least=0, most=2**31 - 1)
        try:
            with simulation_slot():
                found = rerun(decision, request.GET.get("policy", ""), version)
        except InputError as error:
            if error.code != "DecisionExpired":
                raise
            detail = joined(". ", [error.message, self.redaction.summary(decision.summary)])
            raise RequestRefused(410, error.code, detail, hint=error.hint) from None
        return answer(request, self.redaction.rerun(found))


routes = [
    path("pods/<int:pod_id>/why/", WhyView.as_view()),
    path("decisions/<int:decision_id>/again/", DecisionRepeatView.as_view()),
]
