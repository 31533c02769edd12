"""`policies/{name}/preview/`: replay recorded pods under a policy version.

A request starts a run of a worker and returns 202 immediately; `?wait=` follows the run. A user has at most one open
run. Nothing of the cluster or its policies is written. Results name pods of all namespaces, so a token that is limited
to namespaces sees none.
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
from hetsched.placement.actions.previews import ask_preview, cancel_preview
from hetsched.policies.models import Preview
from hetsched.policies.plan_contracts import MOST_DECISIONS, PreviewParameters, Version

from .. import bodies, request_scope
from ..documents import Document, Request, page_of
from ..documents import Rows as Page
from ..pagination import LIST_QUERIES, integer, page, page_of_numbered
from ..problems import not_found
from ..views import ApiView, answer
from .policies import find, version_of

MOST_WAIT_SECONDS = 60
MOST_WAITING = 32  # waiting requests of one process; the others return immediately
_LOOK_SECONDS = 0.2
_waiting = threading.BoundedSemaphore(MOST_WAITING)


class PreviewDraft(Request, frozen=True):
    """Version to replay over the last decisions of a cluster.

    `scope` own: other policies decide their own pods; all: this policy decides every pod. `baseline` recorded: compare
    with the versions of that time instead of the active one.
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
    """A preview: waiting, running, done, failed or cancelled; `progress` is 0-1."""

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


class PreviewsView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW, "POST": Action.EDIT_POLICY}
    queries: ClassVar = LIST_QUERIES

    @extend_schema(responses=page_of(PreviewDetail))
    def get(self, request: Any, name: str) -> HttpResponse:
        """List the previews of a policy, the latest first."""
        request_scope.check_unlimited(self.subject)
        found, following = page(request, _rows(name), "id", descending=True)
        return answer(request, Page([_detail(row) for row in found], following))

    @extend_schema(request=PreviewDraft, responses={202: PreviewDetail})
    def post(self, request: Any, name: str) -> HttpResponse:
        """Replay past decisions with a version."""
        request_scope.check_unlimited(self.subject)
        asked = bodies.read(request, PreviewDraft)
        row = ask_preview(
            version_of(name, asked.version),
            request_scope.cluster_of(asked.cluster),
            PreviewParameters(asked.last, asked.scope, asked.baseline),
            actor=self.subject,
            owner=self.subject.owner,
        )
        location = {"Location": f"/api/v1/policies/{name}/preview/{row.pk}/"}
        return answer(request, _detail(_found(name, row.pk)), status=202, headers=location)


class PreviewView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW, "DELETE": Action.EDIT_POLICY}
    queries: ClassVar = {
        "wait": f"Of a GET: maximum wait for the end of the preview in seconds, 0-{MOST_WAIT_SECONDS}."
    }

    @extend_schema(responses=PreviewDetail)
    def get(self, request: Any, name: str, preview: int) -> HttpResponse:
        """Show a preview; the parameter `wait` delays the response until its end."""
        request_scope.check_unlimited(self.subject)
        seconds = integer(request, "wait", 0, least=0, most=MOST_WAIT_SECONDS)
        row = _found(name, preview)
        if seconds and row.state in Preview.OPEN and _waiting.acquire(blocking=False):
            try:
                _wait(row, time.monotonic() + seconds)
            finally:
                _waiting.release()
        return answer(request, _detail(_found(name, preview)))

    @extend_schema(responses={204: None})
    def delete(self, request: Any, name: str, preview: int) -> HttpResponse:
        """Cancel an open preview, or delete one that has ended."""
        request_scope.check_unlimited(self.subject)
        cancel_preview(_found(name, preview))
        return HttpResponse(status=204)


class PreviewChangesView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {**LIST_QUERIES, "change": "Only pods with this change: infeasible, moved or feasible."}

    @extend_schema(responses=page_of(PodChange))
    def get(self, request: Any, name: str, preview: int) -> HttpResponse:
        """List the pods with a different result: pods without a node first, then by score difference."""
        request_scope.check_unlimited(self.subject)
        kind = request.GET.get("change", "")
        found = _found(name, preview, all_of_it=True).changes
        some = [one for one in found if kind in ("", one.change)]
        rows, following = page_of_numbered(request, some)
        return answer(request, Page(rows, following))


def _wait(row: Preview, until: float) -> None:
    """Return when a preview is finished, or at this time."""
    while time.monotonic() < until:
        if not connection.in_atomic_block:
            connection.close()
        time.sleep(_LOOK_SECONDS)
        if not Preview.objects.filter(pk=row.pk, state__in=Preview.OPEN).exists():
            return


def _rows(name: str) -> QuerySet[Preview]:
    rows = Preview.objects.filter(policy=find(name)).select_related("policy", "cluster")
    return rows.defer("changes", "cluster__definitions")


def _found(name: str, pk: int, *, all_of_it: bool = False) -> Preview:
    rows = _rows(name)
    row = (rows.defer(None) if all_of_it else rows).filter(pk=pk).first() if pk < 2**63 else None
    if row is None:
        raise not_found("preview", pk)
    return row


def _detail(row: Preview) -> PreviewDetail:
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


routes = [
    path("policies/<str:name>/preview/", PreviewsView.as_view()),
    path("policies/<str:name>/preview/<int:preview>/", PreviewView.as_view()),
    path("policies/<str:name>/preview/<int:preview>/changes/", PreviewChangesView.as_view()),
]
