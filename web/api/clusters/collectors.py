"""`clusters/{name}/collectors/`: external sources of node facts, and their state.

A token can be written but not read. A change needs If-Match and a reason. Only addresses that the deployment allows are
accepted. `collectors/` lists the kinds of collectors with the JSON Schema of their parameters.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

import msgspec
from django.db.models import QuerySet
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.adapters.collectors.registry import load_collectors
from hetsched.inventory.collection import configure, remove
from hetsched.inventory.models import Cluster, Collector

from .. import bodies
from ..documents import Document, Request, Rows, page_of
from ..etags import check_match, locked, tag_of_row
from ..resources import ResourceView
from ..views import ApiView, answer
from .connections import find


class NewCollector(Request, frozen=True):
    """The source and interval of a collector. hetsched sends `token` to the source as a bearer token. If `token` is
    absent, the stored token is kept; if it is empty, the stored token is removed.

    Collected facts expire after `mostFailures` failures in a row (default: 1 for measured resource use, 3 for other
    facts), or `mostAgeSeconds` after they were collected.
    """

    kind: str
    reason: str
    params: dict[str, Any] = {}
    enabled: bool = True
    interval_seconds: int = 30
    most_failures: int | None = None
    most_age_seconds: int = 120
    token: str | None = None


class CollectorDetail(Document, frozen=True):
    """Collector and its state; `up` is true while its data is in use."""

    cluster: str
    name: str
    kind: str
    params: dict[str, Any]
    enabled: bool
    load: bool
    interval_seconds: int
    most_failures: int
    most_age_seconds: int
    has_token: bool
    up: bool
    tried_at: datetime | None
    answered_at: datetime | None
    stale_since: datetime | None
    failures: int
    failure_code: str
    failure: str
    problems: list[str]
    nodes: int
    nodes_stale: int


class CollectorKind(Document, frozen=True):
    """A kind of collector; `load` is true if its collectors measure resource use."""

    name: str
    summary: str
    load: bool
    params: dict[str, Any]
    defaults: dict[str, Any]


def detail(row: Collector) -> CollectorDetail:
    """Return a collector with its state, without its token."""
    return CollectorDetail(
        cluster=row.cluster.name,
        name=row.name,
        kind=row.kind,
        params=row.params,
        enabled=row.enabled,
        load=row.load,
        interval_seconds=row.interval_seconds,
        most_failures=row.most_failures,
        most_age_seconds=row.most_age_seconds,
        has_token=bool(row.sealed_token),
        up=row.enabled and row.answered_at is not None and row.stale_since is None,
        tried_at=row.tried_at,
        answered_at=row.answered_at,
        stale_since=row.stale_since,
        failures=row.failures,
        failure_code=row.failure_code,
        failure=row.failure,
        problems=list(row.problems),
        nodes=row.nodes_reported,
        nodes_stale=row.nodes_stale,
    )


class CollectorKindsView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}

    @extend_schema(responses=page_of(CollectorKind))
    def get(self, request: Any) -> HttpResponse:
        """List the kinds of collectors with the JSON Schema of their parameters."""
        kinds = [msgspec.convert(info.describe(), CollectorKind) for info in load_collectors().values()]
        return answer(request, Rows(kinds, None))


class CollectorsView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    cluster_wide = True

    @extend_schema(responses=page_of(CollectorDetail))
    def get(self, request: Any, name: str) -> HttpResponse:
        """List the collectors of a cluster."""
        rows = find(name).collectors.select_related("cluster")
        return answer(request, Rows([detail(row) for row in rows], None))


class CollectorView(ResourceView):
    cluster_wide = True
    noun = "collector"
    lookup_field = "name"
    lookup_url_kwarg = "collector"
    actions: ClassVar = {"GET": Action.VIEW, "PUT": Action.OPERATE, "DELETE": Action.OPERATE}
    matched: ClassVar = {"PUT": False, "DELETE": True}
    queries: ClassVar = {"reason": "Of a DELETE: reason for the audit trail."}

    def get_queryset(self) -> QuerySet[Collector]:
        return Collector.objects.select_related("cluster").filter(cluster=find(self.kwargs["name"]))

    def document(self, row: Collector) -> CollectorDetail:
        return detail(row)

    def tag(self, row: Collector) -> str:
        """Return the two-part ETag: the tag of the settings, a dot, and the tag of the collector's state."""
        return tag_of_row(row, row.version, detail(row))

    def lock_of(self, row: Collector) -> Cluster:
        return row.cluster

    @extend_schema(responses=CollectorDetail)
    def get(self, request: Any, name: str, collector: str) -> HttpResponse:
        """Show a collector."""
        return self.retrieve(request)

    @extend_schema(request=NewCollector, responses={200: CollectorDetail, 201: CollectorDetail})
    def put(self, request: Any, name: str, collector: str) -> HttpResponse:
        """Add or change a collector; a change needs If-Match."""
        asked = bodies.read(request, NewCollector)
        cluster = find(name)
        with locked(cluster):
            known = self.get_queryset().filter(name=collector).first()
            if known is not None:
                check_match(request, self.tag(known), required=True)
            configure(
                cluster,
                collector,
                kind=asked.kind,
                params=asked.params,
                enabled=asked.enabled,
                interval_seconds=asked.interval_seconds,
                most_failures=asked.most_failures,
                most_age_seconds=asked.most_age_seconds,
                token=asked.token,
                actor=self.subject,
                reason=asked.reason,
            )
        return self.written(self.get_object(), status=200 if known else 201)

    @extend_schema(responses={204: None})
    def delete(self, request: Any, name: str, collector: str) -> HttpResponse:
        """Remove a collector and its data; needs If-Match."""
        with self.matched_object() as row:
            remove(row.cluster, collector, actor=self.subject, reason=request.GET.get("reason", ""))
        return HttpResponse(status=204)


routes = [
    path("collectors/", CollectorKindsView.as_view()),
    path("clusters/<str:name>/collectors/", CollectorsView.as_view()),
    path("clusters/<str:name>/collectors/<str:collector>/", CollectorView.as_view()),
]
