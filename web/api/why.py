"""`pods/{id}/why/` and `decisions/{id}/again/`: what a person asks once a decision is read.

Rule: reading only. What costs a search, the outlook of a waiting pod, is worked out on a copy of the present state when
it is asked for; so is the matrix of every node. A decision is made again on the state that it was made on: 410 where
that is gone. Who stands in a pod's way in namespaces that the asker does not see is counted, not named.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from django.http import HttpResponse
from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.access.subject import Subject
from hetsched.adapters.objects.pod_objects import pod_object
from hetsched.contracts.errors import InputError
from hetsched.placement.models import Pod
from hetsched.placement.queries.decision_check import Again, again
from hetsched.placement.queries.why import (
    Changed,
    Gang,
    Outlook,
    ReasonSpan,
    changed,
    decisions_of,
    gang_of,
    outlook,
    spans_of,
)

from . import reach
from .documents import Document
from .paging import flag, integer
from .problems import Refused, not_found
from .views import ApiView, answer
from .what_if import turn


class PodWhy(Document, frozen=True):
    """Why a pod is where it is: its latest decision, how long each reason held it, and what would help.

    `spans` add up to the time since it was submitted; the pending ones are the time it waited. `changed` compares the
    latest attempt with the one before. `outlook` is null unless it is asked for and the pod waits.
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
    gang: Gang | None
    outlook: Outlook | None
    manifest: dict[str, Any]


class Why(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {"outlook": "true works out what would place a waiting pod now, and who stands in its way."}

    @extend_schema(responses=PodWhy)
    def get(self, request: Any, pod_id: int) -> HttpResponse:
        """Say why a pod is where it is, or nowhere."""
        rows = Pod.objects.select_related("cluster", "node", "decision").defer("node__report")
        pod = rows.filter(pk=pod_id).first() if pod_id < 2**63 else None
        if pod is None or not self.subject.may_in(pod.namespace):
            raise not_found("pod", pod_id)
        now = timezone.now()
        decisions = decisions_of(pod)
        spans = spans_of(pod, decisions, now)
        found = None
        if flag(request, "outlook"):
            with turn():
                found = _as_seen(outlook(pod, now), self.subject)
        document = PodWhy(
            id=pod.pk,
            pod=pod.key,
            cluster=pod.cluster.name,
            workload=pod.workload_id,
            state=pod.state,
            node=pod.node.name if pod.node else None,
            decision=pod.decision_id,
            summary=pod.decision.summary if pod.decision else "",
            message=pod.message,
            pending_seconds=round(sum(span.seconds for span in spans if span.pending), 3),
            spans=spans,
            changed=changed(*decisions[-2:]) if len(decisions) > 1 else None,
            gang=gang_of(pod),
            outlook=found,
            manifest=pod_object(pod.spec, compact=True),
        )
        return answer(request, document)


def _as_seen(found: Outlook | None, subject: Subject) -> Outlook | None:
    if found is None:
        return None
    told = tuple(
        tuple(
            one if subject.may_in(one.pod.partition("/")[0]) else msgspec.structs.replace(one, pod="", pdb=None)
            for one in node
        )
        for node in found.blockers
    )
    return msgspec.structs.replace(found, blockers=told)


class Repeat(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {
        "policy": "Decide by this policy instead of the one that decided.",
        "version": "By this version of it; the active one if not given.",
    }

    @extend_schema(responses=Again)
    def get(self, request: Any, decision_id: int) -> HttpResponse:
        """Decide again on the state that was decided on, and say what differs; nothing is written."""
        rows = reach.decisions(self.subject).select_related("cluster", "pod")
        decision = rows.filter(pk=decision_id).first() if decision_id < 2**63 else None
        if decision is None:
            raise not_found("decision", decision_id)
        version = integer(request, "version", 0, least=0, most=2**31 - 1)
        try:
            with turn():
                found = again(decision, request.GET.get("policy", ""), version)
        except InputError as error:
            if error.code != "DecisionExpired":
                raise
            raise Refused(410, error.code, f"{error.message}. {decision.summary}", hint=error.hint) from None
        return answer(request, found)


routes = [
    path("pods/<int:pod_id>/why/", Why.as_view()),
    path("decisions/<int:decision_id>/again/", Repeat.as_view()),
]
