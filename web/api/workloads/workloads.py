"""`workloads/`: submit (`submissions.py`), show, wait for, cancel and change workloads.

A workload shows the nodes of its pods and the duration of each state; `?wait=` delays the response until the workload
is in the awaited state. Actions need a reason and If-Match; the ETag is computed from the whole document.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Literal

import msgspec
from django.db.models import QuerySet
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.access.tokens import allowance_of
from hetsched.contracts.api.workload import ObjectRow
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.times import rfc3339
from hetsched.contracts.waits import describe_waits
from hetsched.inventory.actions import require_reason
from hetsched.inventory.models import Cluster
from hetsched.placement.actions import cancel, retry, set_priority
from hetsched.placement.lifecycle import FINISHED, State
from hetsched.placement.models import Pod, Workload
from hetsched.placement.queries import topics
from hetsched.placement.queries.images import ImageDetail, images_of
from hetsched.placement.queries.redaction import UNLIMITED, Redaction

from .. import bodies, request_scope
from ..documents import Document, Request, page_of
from ..etags import etag_of
from ..pagination import LIST_QUERIES, integer
from ..problems import RequestRefused
from ..queries import STATE
from ..rates import SUBMIT
from ..resources import ResourceView
from ..views import answer
from .submissions import SUBMIT_QUERIES, Accepted, Submit, accept
from .waiting import watch

MOST_SHOWN_PODS = 500
MOST_READ = 20  # number of pods whose images are shown; the other pods of a workload rarely have different images
LONGEST_WAIT_SECONDS = 60
_REFUSED = {State.NOT_NOW.value, State.NEVER_FITS.value, State.MISCONFIGURED.value}
# For each goal of `?for=`, the states of a workload that has reached the goal.
_GOALS = {
    "placed": frozenset(State) - {State.PENDING},
    "running": frozenset({State.RUNNING, State.MISCONFIGURED, State.NEVER_FITS, *FINISHED}),
    "finished": frozenset({State.MISCONFIGURED, *FINISHED}),
}


class Span(Document, frozen=True):
    """A state of a workload and its duration; `seconds` is null for the current state."""

    state: str
    since: str
    seconds: float | None


class WorkloadRow(Document, frozen=True):
    """A workload in a list."""

    id: str
    cluster: str
    namespace: str
    name: str
    state: str
    policy: str
    priority: int
    pod_count: int
    submitted_by: str
    created_at: Any
    decided_at: Any
    finished_at: Any


class PodRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Pod of a workload with its allocation. For a rejected pod, `waitsFor` lists the events that it has been waiting
    for since its last attempt.

    `id` is the id for `pods/{id}/why/`.
    """

    id: int
    pod: str
    state: str
    node: str | None
    policy: str | None
    decision: int | None
    message: str | None
    waits_for: str | None
    tried_at: str | None
    isa: Any
    gpus: Any
    zones: Any
    decided_at: str | None
    started_at: str | None
    finished_at: str | None


class WorkloadDetail(Document, frozen=True):
    """A workload with its first 500 pods; `podsNext` is the address of the next page of pods.

    `states` are the first state and the latest 199; the first state includes the time of the states that are left out.
    `images` are the images of its first pods, each with its platforms or with the reason why they are unknown.
    """

    id: str
    cluster: str
    namespace: str
    name: str
    state: str
    policy: str
    priority: int
    pod_count: int
    submitted_by: str
    callback_url: str
    created_at: Any
    decided_at: Any
    finished_at: Any
    states: list[Span]
    objects: list[ObjectRow]
    images: list[ImageDetail]
    pods: list[dict[str, Any]]
    pods_next: str | None


class WorkloadAction(Request, frozen=True):
    """Action on a workload; `priority` is the new priority, only for the action `priority`."""

    action: Literal["retry", "priority", "cancel"]
    reason: str
    priority: int | None = None


class WorkloadResource(ResourceView):
    """Base of the views of workloads, limited to those that the caller may see; a write locks their cluster."""

    noun = "workload"
    lookup_url_kwarg = "workload_id"

    def get_queryset(self) -> QuerySet[Workload]:
        return request_scope.workloads(self.subject).defer("manifest").select_related("cluster")

    def document(self, row: Workload) -> WorkloadDetail:
        return _detail(row, self.redaction)

    def lock_of(self, row: Workload) -> Cluster:
        return row.cluster


class WorkloadsView(WorkloadResource):
    actions: ClassVar = {"GET": Action.VIEW, "POST": Action.SUBMIT}
    keyed: ClassVar = ("POST",)
    counted: ClassVar = {"POST": SUBMIT}
    within: ClassVar = ("POST",)
    queries: ClassVar = {
        **request_scope.CLUSTER_QUERY,
        **LIST_QUERIES,
        **SUBMIT_QUERIES,
        "namespace": "Only workloads in this namespace.",
        "state": "Only workloads in this state.",
        "name": "Only workloads with this name; in a POST, the name of the workload.",
    }
    kinds: ClassVar = {"state": STATE}
    filters: ClassVar = {"cluster": "cluster__name", "namespace": "namespace", "state": "state", "name": "name"}
    ordering = "-id"

    def get_queryset(self) -> QuerySet[Any]:
        fields = [name for name in WorkloadRow.__struct_fields__ if name != "cluster"]
        return request_scope.workloads(self.subject).values(*fields, "cluster__name")

    def document(self, row: dict[str, Any]) -> WorkloadRow:  # type: ignore[override]  # columns of the list
        return WorkloadRow(cluster=row.pop("cluster__name"), **row)

    @extend_schema(responses=page_of(WorkloadRow))
    def get(self, request: Any) -> HttpResponse:
        """List workloads, latest first."""
        return self.list(request)

    @extend_schema(
        request={
            "application/json": Submit,
            "application/yaml": OpenApiTypes.STR,
            "text/csv": OpenApiTypes.STR,
        },
        responses={202: Accepted},
    )
    def post(self, request: Any) -> HttpResponse:
        """Submit a manifest; the scheduler places its pods later."""
        accepted = accept(request, self.subject)
        headers = {"Location": f"{request.path}{accepted.workload_id}/"}
        if accepted.replayed:
            headers["Idempotency-Replayed"] = "true"
        return answer(request, accepted.response, status=202, headers=headers)


class WorkloadView(WorkloadResource):
    actions: ClassVar = {"GET": Action.VIEW, "DELETE": Action.SUBMIT}
    matched: ClassVar = {"DELETE": False}
    within: ClassVar = ("DELETE",)
    queries: ClassVar = {
        "wait": f"Maximum wait in seconds for the state in `for`, at most {LONGEST_WAIT_SECONDS}.",
        "for": "State to wait for: placed (any verdict), running or finished.",
        "reason": "DELETE: reason for the audit trail.",
    }

    @extend_schema(responses=WorkloadDetail)
    def get(self, request: Any, workload_id: str) -> HttpResponse:
        """Show a workload: its state, the nodes of its pods and the duration of each state."""
        workload = self.get_object()
        seconds = integer(request, "wait", 0, least=0, most=LONGEST_WAIT_SECONDS)
        goal = _GOALS[request.GET.get("for", "placed")]
        if seconds and workload.state not in goal:
            watch.wait(workload.pk, goal, seconds)
            workload = self.get_object()
        return answer(request, self.document(workload), etag=self.tag(workload))

    @extend_schema(responses={200: WorkloadDetail})
    def delete(self, request: Any, workload_id: str) -> HttpResponse:
        """Cancel a workload and release its reservations."""
        with self.matched_object() as workload:
            cancel(workload, actor=self.subject, reason=request.GET.get("reason") or "deleted by request")
        return answer(request, self.document(self.get_object()))


class PodsView(ResourceView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {**LIST_QUERIES, "state": "Only pods in this state."}
    kinds: ClassVar = {"state": STATE}
    filters: ClassVar = {"state": "state"}
    ordering = "id"

    def get_queryset(self) -> QuerySet[Pod]:
        workload = request_scope.get_row(request_scope.workloads(self.subject), "workload", self.kwargs["workload_id"])
        return _shown(Pod.objects.filter(workload=workload))

    def document(self, row: Pod) -> dict[str, Any]:
        return _pod(row, self.redaction)

    @extend_schema(responses=page_of(PodRow))
    def get(self, request: Any, workload_id: str) -> HttpResponse:
        """List the pods of a workload in the order of submission."""
        return self.list(request)


class WorkloadActionsView(WorkloadResource):
    actions: ClassVar = {"POST": Action.SUBMIT}
    matched: ClassVar = {"POST": True}
    within: ClassVar = ("POST",)

    @extend_schema(request=WorkloadAction, responses=WorkloadDetail)
    def post(self, request: Any, workload_id: str) -> HttpResponse:
        """Retry, cancel, or change the priority of a workload; needs If-Match."""
        asked = bodies.read(request, WorkloadAction)
        if asked.action == "priority" and not self.subject.may(Action.OPERATE):
            raise RequestRefused(403, "PermissionDenied", "changing the priority requires the right 'operate'")
        reason, allowance = require_reason(asked.reason), allowance_of(self.subject.token)
        with self.matched_object() as workload:
            if asked.action == "priority":
                if asked.priority is None:
                    raise InputError("ActionIncomplete", "this action requires the field priority", place="priority")
                set_priority(workload, asked.priority, actor=self.subject, reason=reason, allowance=allowance)
            elif asked.action == "retry":
                retry(workload, actor=self.subject, reason=reason, allowance=allowance)
            else:
                cancel(workload, actor=self.subject, reason=reason)
        return self.written(self.get_object())


def etag(workload: Workload, redaction: Redaction = UNLIMITED) -> str:
    """Return the ETag of a workload, computed from its whole document as the caller sees it."""
    return etag_of(encode(_detail(workload, redaction)))


def _detail(workload: Workload, redaction: Redaction) -> WorkloadDetail:
    pods = _shown(workload.pods.order_by("id"))[:MOST_SHOWN_PODS]
    return WorkloadDetail(
        id=workload.pk,
        cluster=workload.cluster.name,
        namespace=workload.namespace,
        name=workload.name,
        state=workload.state,
        policy=workload.policy,
        priority=workload.priority,
        pod_count=workload.pod_count,
        submitted_by=workload.submitted_by,
        callback_url=workload.callback_url,
        created_at=workload.created_at,
        decided_at=workload.decided_at,
        finished_at=workload.finished_at,
        states=_spans(workload.history),
        objects=[
            ObjectRow(
                submitted_object.wanted.kind,
                submitted_object.namespace,
                submitted_object.wanted.name,
                submitted_object.state,
                submitted_object.message,
            )
            for submitted_object in workload.objects_there.order_by("id")[:MOST_SHOWN_PODS]
        ],
        images=images_of(
            workload.cluster, list(workload.pods.order_by("id").values_list("spec", flat=True)[:MOST_READ])
        ),
        pods=[_pod(pod, redaction) for pod in pods],
        pods_next=f"/api/v1/workloads/{workload.pk}/pods/" if workload.pod_count > MOST_SHOWN_PODS else None,
    )


def _shown(pods: Any) -> Any:
    heavy = ("spec", "decision__reasons", "decision__top", "decision__allocation")
    return pods.select_related("node", "decision").defer(*heavy)


def _pod(pod: Pod, redaction: Redaction) -> dict[str, Any]:
    """Return the document of a pod; a rejected pod without a message gets the summary of its latest decision."""
    tried = rfc3339(pod.tried_at) if pod.tried_at else None
    waits = describe_waits(pod.waits_for) or None
    document = {"id": pod.pk, "pod": pod.key, **topics.pod_document(pod), "waitsFor": waits, "triedAt": tried}
    if document["message"] is not None:
        document["message"] = redaction.message(document["message"])
    elif pod.state in _REFUSED and pod.decision is not None:
        document["message"] = redaction.summary(pod.decision.summary)
    return document


def _spans(history: list[list[str]]) -> list[Span]:
    """Return the states in a workload's history with their durations."""
    times = [msgspec.convert(at, type=datetime) for _, at in history]
    ends: list[datetime | None] = [*times[1:], None]
    return [
        Span(state, at, None if end is None else round((end - began).total_seconds(), 3))
        for (state, at), began, end in zip(history, times, ends, strict=True)
    ]


routes = [
    path("workloads/", WorkloadsView.as_view()),
    path("workloads/<str:workload_id>/", WorkloadView.as_view()),
    path("workloads/<str:workload_id>/pods/", PodsView.as_view()),
    path("workloads/<str:workload_id>/actions/", WorkloadActionsView.as_view()),
]
