"""`holds/`: capacity reserved for pods that do not exist yet.

The server creates a hold immediately, on the current state of the cluster, for all pods of the manifest or for none. A
hold does not preempt pods, and other pods cannot use its capacity. A hold ends at `expiresAt` by the database's clock
unless it is extended, cancelled or named by a submission (`hold` in `POST workloads/`), whose pods get the capacity.
The owner of a hold and operators may use and change it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Literal

from django.db.models import Min, QuerySet
from django.http import HttpResponse
from django.urls import path
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.access.subject import Subject
from hetsched.access.tokens import allowance_of
from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.api.workload import HeldPod
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.inventory.models import Cluster
from hetsched.placement.actions import CreatedHold, cancel_hold, create_hold, extend_hold, stored_hold
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Hold, Pod
from hetsched.placement.queries.redaction import UNLIMITED, Redaction

from .. import bodies, request_scope
from ..documents import Document, Request, page_of
from ..etags import etag_of
from ..pagination import LIST_QUERIES, integer
from ..problems import RequestRefused
from ..rates import SUBMIT
from ..resources import ResourceView
from ..views import answer
from ..whatif.planned import check_reservable, reserve, reserved_parts
from ..whatif.what_if import WhatIf, WhatIfRun
from .submissions import fingerprint, idempotency_key

DEFAULT_SECONDS = 600
_LONGEST = 604_800


class HoldDraft(Request, frozen=True):
    """Manifest to reserve capacity for, and the duration in seconds; `note` is visible to other users."""

    manifest: str | dict[str, Any]
    cluster: str = ""
    policy: str = ""
    seconds: int = DEFAULT_SECONDS
    note: str = ""


class HoldAction(Request, frozen=True):
    """Extension of a hold to `seconds` from now, or its cancellation, with the reason for the audit trail."""

    action: Literal["extend", "cancel"]
    reason: str
    seconds: int = DEFAULT_SECONDS


class NewHold(Document, frozen=True):
    """Response to a new hold; the capacity of every pod is reserved."""

    id: str
    state: str
    expires_at: str
    pods: list[dict[str, str]]


class HoldRow(Document, frozen=True):
    """A hold in a list; its state is held, claimed by a submission, used, expired, cancelled or lost."""

    id: str
    cluster: str
    namespace: str
    state: str
    policy: str
    pod_count: int
    held_by: str
    note: str
    workload: str | None
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    end_reason: str


class HoldDetail(Document, frozen=True):
    """Hold with its reserved capacity by node."""

    id: str
    cluster: str
    namespace: str
    state: str
    policy: str
    policy_version: int
    pod_count: int
    held_by: str
    note: str
    workload: str | None
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    end_reason: str
    pods: list[HeldPod]


class HoldResource(ResourceView):
    """Base of the views of holds, limited to those that the caller may see; a write locks the cluster of the hold."""

    noun = "hold"
    lookup_url_kwarg = "hold_id"
    ordering = "-id"

    def get_queryset(self) -> QuerySet[Hold]:
        return request_scope.holds(self.subject).select_related("cluster")

    def document(self, row: Hold) -> HoldDetail:
        return _detail(row, self.redaction)

    def lock_of(self, row: Hold) -> Cluster:
        return row.cluster


class HoldsView(HoldResource):
    actions: ClassVar = {"GET": Action.VIEW, "POST": Action.SUBMIT}
    within: ClassVar = ("POST",)
    keyed: ClassVar = ("POST",)
    counted: ClassVar = {"POST": SUBMIT}
    queries: ClassVar = {
        **request_scope.CLUSTER_QUERY,
        **LIST_QUERIES,
        "namespace": "Only holds in this namespace.",
        "state": "Only holds in this state.",
        "workload": "Only holds claimed by this workload.",
        "policy": "POST of a bare manifest: policy for placement.",
        "seconds": "POST of a bare manifest: duration of the hold in seconds, default 600.",
        "note": "POST of a bare manifest: note shown to other users.",
    }
    kinds: ClassVar = {"state": {"type": "string", "enum": list(Hold.STATES)}}
    filters: ClassVar = {
        "cluster": "cluster__name", "namespace": "namespace", "state": "state", "workload": "workload",
    }  # fmt: skip

    def document(self, row: Hold) -> HoldRow:  # type: ignore[override]  # without the pods
        return HoldRow(**_common(row, self.redaction))

    @extend_schema(responses=page_of(HoldRow))
    def get(self, request: Any) -> HttpResponse:
        """List holds, the latest first."""
        return self.list(request)

    @extend_schema(
        request={
            "application/json": HoldDraft,
            "application/yaml": OpenApiTypes.STR,
            "text/csv": OpenApiTypes.STR,
        },
        responses={201: NewHold},
    )
    def post(self, request: Any) -> HttpResponse:
        """Reserve capacity for all pods of a manifest, or for none."""
        key, asked, subject = idempotency_key(request), _read(request), self.subject
        body_hash = fingerprint(request, "holds")
        kept = stored_hold(subject.owner, key, body_hash) or _hold(asked, subject, key, body_hash)
        headers = {"Location": f"/api/v1/holds/{kept.hold_id}/"}
        if kept.replayed:
            headers["Idempotency-Replayed"] = "true"
        return answer(request, kept.response, status=201, headers=headers)


class HoldView(HoldResource):
    actions: ClassVar = {"GET": Action.VIEW, "DELETE": Action.SUBMIT}
    within: ClassVar = ("DELETE",)
    matched: ClassVar = {"DELETE": False}
    queries: ClassVar = {"reason": "DELETE: reason for the audit trail."}

    @extend_schema(responses=HoldDetail)
    def get(self, request: Any, hold_id: str) -> HttpResponse:
        """Show a hold with its expiry and its reserved capacity by node."""
        return self.retrieve(request)

    @extend_schema(responses={200: HoldDetail})
    def delete(self, request: Any, hold_id: str) -> HttpResponse:
        """Cancel a hold; a hold that has ended is unchanged."""
        request_scope.own_hold(self.subject, hold_id)
        with self.matched_object() as row:
            cancel_hold(row, actor=self.subject, reason=request.GET.get("reason") or "deleted by request")
        return answer(request, self.document(self.get_object()))


class HoldActionsView(HoldResource):
    actions: ClassVar = {"POST": Action.SUBMIT}
    within: ClassVar = ("POST",)
    matched: ClassVar = {"POST": True}

    @extend_schema(request=HoldAction, responses=HoldDetail)
    def post(self, request: Any, hold_id: str) -> HttpResponse:
        """Extend or cancel a hold; needs If-Match."""
        asked = bodies.read(request, HoldAction)
        request_scope.own_hold(self.subject, hold_id)
        with self.matched_object() as row:
            if asked.action == "extend":
                extend_hold(row, asked.seconds, actor=self.subject, reason=asked.reason)
            else:
                cancel_hold(row, actor=self.subject, reason=asked.reason)
        return self.written(self.get_object())


def _read(request: Any) -> HoldDraft:
    seconds = integer(request, "seconds", DEFAULT_SECONDS, least=1, most=_LONGEST)
    asked = bodies.wrapped_document(request, HoldDraft)
    if asked is not None:
        return asked
    query = request.GET
    return HoldDraft(
        manifest=bodies.text(bodies.raw(request, large=True)),
        cluster=query.get("cluster", ""),
        policy=query.get("policy", ""),
        seconds=seconds,
        note=query.get("note", ""),
    )


def _hold(asked: HoldDraft, subject: Subject, key: str, body_hash: str) -> CreatedHold:
    if len(asked.note) > 300 or "\0" in asked.note:
        raise InputError(
            "NoteInvalid", "a note must have at most 300 characters", place="note", hint="Shorten the note"
        )
    cluster = request_scope.cluster_of(asked.cluster)
    check_reservable(cluster)
    wish = WhatIf(manifest=asked.manifest, cluster=cluster.name, policy=asked.policy, preempt=False, plan=True)

    def write(tried: WhatIfRun) -> CreatedHold:
        if tried.answer.verdict is not Verdict.PLACED:
            raise RequestRefused(
                409, "NoRoom", Message("no hold was created: {detail}", detail=tried.answer.summary), place="manifest",
                hint="See whatIf for the missing resources of each pod", members={"what_if": tried.answer},
            )  # fmt: skip
        return create_hold(
            cluster.pk, reserved_parts(tried), revision=tried.revision, policy=tried.answer.policy,
            seconds=asked.seconds,
            actor=subject, owner=subject.owner, note=asked.note, idempotency_key=key, body_hash=body_hash,
            allowance=allowance_of(subject.token),
        )  # fmt: skip

    try:
        return reserve(wish, subject, write)
    except InputError as error:
        if error.code != "TooManyHolds":
            raise
        raise RequestRefused(429, error.code, error.message, hint=error.hint, headers=_retry_after(subject)) from None


def _retry_after(subject: Subject) -> dict[str, str]:
    open_ones = Hold.objects.filter(owner=subject.owner, state=Hold.HELD)
    first = open_ones.aggregate(first=Min("expires_at"))["first"]
    seconds = 60 if first is None else (first - timezone.now()).total_seconds()
    return {"Retry-After": str(max(1, int(seconds)))}


def tag(row: Hold, redaction: Redaction = UNLIMITED) -> str:
    """Return the ETag of a hold."""
    return etag_of(encode(_detail(row, redaction)))


def _common(row: Hold, redaction: Redaction) -> dict[str, Any]:
    names = ("id", "namespace", "state", "pod_count", "held_by", "note", "created_at", "expires_at", "ended_at")
    fields = {name: getattr(row, name) for name in names}
    return {
        **fields,
        "cluster": row.cluster.name,
        "policy": row.policy_name,
        "workload": row.workload_id,
        "end_reason": redaction.message(row.end_reason),
    }


def _detail(row: Hold, redaction: Redaction) -> HoldDetail:
    reserved_pods = Pod.objects.filter(hold=row, origin=Pod.HELD).select_related("node").defer("spec", "node__report")
    return HoldDetail(
        **_common(row, redaction), policy_version=row.policy_version, pods=[_held_pod(pod) for pod in reserved_pods]
    )


def _held_pod(pod: Pod) -> HeldPod:
    allocation = pod.allocation
    return HeldPod(
        pod=pod.key,
        node=pod.node.name if pod.node else "",
        held=pod.state == State.RUNNING.value,
        cpus=tuple(zone.cpus for zone in allocation.zones if zone.cpus) if allocation else (),
        gpus=allocation.gpus if allocation else (),
    )


routes = [
    path("holds/", HoldsView.as_view()),
    path("holds/<str:hold_id>/", HoldView.as_view()),
    path("holds/<str:hold_id>/actions/", HoldActionsView.as_view()),
]
