"""`policies/{name}/preview/`: replay recorded pods under a policy version.

A request starts a run in a worker and returns 202 immediately; `?wait=` waits for the end of a run. A user has at most
one unfinished run. The cluster and its policies are not changed. Results name pods of all namespaces, so a token that
is limited to namespaces cannot read them.
"""

from __future__ import annotations

import threading
import time
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from django.db import connection
from django.db.models import QuerySet
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.lab.rerun import PodChange, ReplayResult
from hetsched.placement.actions.previews import cancel_preview, request_preview
from hetsched.policies.models import Preview
from hetsched.policies.plan_contracts import MOST_DECISIONS, PreviewParameters, Version

from .. import bodies, request_scope
from ..documents import Document, Request, Rows, page_of
from ..pagination import LIST_QUERIES, integer, page_of_numbered
from ..resources import ResourceView
from ..views import answer
from .policies import find, version_of

MOST_WAIT_SECONDS = 60
MOST_WAITING = 32  # maximum number of waiting requests per process; further requests return without waiting
_LOOK_SECONDS = 0.2
_waiting = threading.BoundedSemaphore(MOST_WAITING)


class PreviewDraft(Request, frozen=True):
    """Version to replay over the last decisions of a cluster.

    With `scope` own, pods of other policies are decided by those policies; with all, this policy decides every pod.
    With `baseline` recorded, the result is compared with the policy versions that made the decisions, otherwise with
    the active version.
    """

    version: Version
    cluster: str = ""
    last: Annotated[int, msgspec.Meta(ge=1, le=MOST_DECISIONS)] = 1000
    scope: Literal["own", "all"] = "own"
    baseline: Literal["active", "recorded"] = "active"


class PreviewProblem(Document, frozen=True):
    """Reason why a preview failed."""

    code: str
    message: str


class PreviewDetail(Document, frozen=True):
    """A preview; `state` is waiting, running, done, failed or cancelled, and `progress` is 0-1."""

    id: int
    policy: str
    version: int
    cluster: str
    last: int
    scope: str
    baseline: str
    state: str
    progress: float
    asked_by: str
    asked_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    problem: PreviewProblem | None
    result: ReplayResult | None


class PreviewResource(ResourceView):
    """Base of the views of the previews of a policy."""

    cluster_wide = True
    noun = "preview"
    lookup_url_kwarg = "preview"
    ordering = "-id"

    def get_queryset(self) -> QuerySet[Preview]:
        rows = Preview.objects.filter(policy=find(self.kwargs["name"])).select_related("policy", "cluster")
        return rows.defer("changes", "cluster__definitions")

    def document(self, row: Preview) -> PreviewDetail:
        return PreviewDetail(
            id=row.pk,
            policy=row.policy.name,
            version=row.version,
            cluster=row.cluster.name,
            last=row.asked.last,
            scope=row.asked.scope,
            baseline=row.asked.baseline,
            state=row.state,
            progress=row.progress,
            asked_by=row.asked_by,
            asked_at=row.asked_at,
            started_at=row.started_at,
            ended_at=row.ended_at,
            problem=PreviewProblem(row.problem.code, row.problem.message) if row.problem else None,
            result=row.result,
        )


class PreviewsView(PreviewResource):
    actions: ClassVar = {"GET": Action.VIEW, "POST": Action.EDIT_POLICY}
    queries: ClassVar = LIST_QUERIES

    @extend_schema(responses=page_of(PreviewDetail))
    def get(self, request: Any, name: str) -> HttpResponse:
        """List the previews of a policy, the latest first."""
        return self.list(request)

    @extend_schema(request=PreviewDraft, responses={202: PreviewDetail})
    def post(self, request: Any, name: str) -> HttpResponse:
        """Replay past decisions with a version."""
        asked = bodies.read(request, PreviewDraft)
        row = request_preview(
            version_of(name, asked.version),
            request_scope.cluster_of(asked.cluster),
            PreviewParameters(asked.last, asked.scope, asked.baseline),
            actor=self.subject,
            owner=self.subject.owner,
        )
        location = {"Location": f"/api/v1/policies/{name}/preview/{row.pk}/"}
        made = self.get_queryset().get(pk=row.pk)
        return answer(request, self.document(made), status=202, headers=location)


class PreviewView(PreviewResource):
    actions: ClassVar = {"GET": Action.VIEW, "DELETE": Action.EDIT_POLICY}
    queries: ClassVar = {
        "wait": f"Of a GET: maximum wait for the end of the preview in seconds, 0-{MOST_WAIT_SECONDS}."
    }

    @extend_schema(responses=PreviewDetail)
    def get(self, request: Any, name: str, preview: int) -> HttpResponse:
        """Show a preview; the parameter `wait` delays the response until the run has ended."""
        seconds = integer(request, "wait", 0, least=0, most=MOST_WAIT_SECONDS)
        row = self.get_object()
        if seconds and row.state in Preview.OPEN and _waiting.acquire(blocking=False):
            try:
                _wait(row, time.monotonic() + seconds)
            finally:
                _waiting.release()
        return answer(request, self.document(self.get_object()))

    @extend_schema(responses={204: None})
    def delete(self, request: Any, name: str, preview: int) -> HttpResponse:
        """Cancel an unfinished preview, or delete one that has ended."""
        cancel_preview(self.get_object())
        return HttpResponse(status=204)


class PreviewChangesView(PreviewResource):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {**LIST_QUERIES, "change": "Only pods with this change: infeasible, moved or feasible."}

    def get_queryset(self) -> QuerySet[Preview]:
        return super().get_queryset().defer(None)

    @extend_schema(responses=page_of(PodChange))
    def get(self, request: Any, name: str, preview: int) -> HttpResponse:
        """List the pods with a different result: pods without a node first, then by score difference."""
        kind = request.GET.get("change", "")
        found = self.get_object().changes
        some = [item for item in found if kind in ("", item.change)]
        rows, following = page_of_numbered(request, some)
        return answer(request, Rows(rows, following))


def _wait(row: Preview, until: float) -> None:
    """Wait until a preview has ended, but at most until `until` (monotonic time)."""
    while time.monotonic() < until:
        if not connection.in_atomic_block:
            connection.close()
        time.sleep(_LOOK_SECONDS)
        if not Preview.objects.filter(pk=row.pk, state__in=Preview.OPEN).exists():
            return


routes = [
    path("policies/<str:name>/preview/", PreviewsView.as_view()),
    path("policies/<str:name>/preview/<int:preview>/", PreviewView.as_view()),
    path("policies/<str:name>/preview/<int:preview>/changes/", PreviewChangesView.as_view()),
]
