"""`clusters/`: add a cluster, import its nodes from files, export it.

An import replaces the whole inventory, or changes nothing if it fails. A write to a cluster needs the permission
`operate`, a reason for the audit trail and, if it overwrites data, If-Match.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.access.subject import Subject
from hetsched.adapters.anonymising import anonymised
from hetsched.adapters.files import parse_cluster
from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.warnings import ManifestWarning
from hetsched.inventory.actions import create_cluster, require_reason
from hetsched.inventory.models import Cluster
from hetsched.inventory.tiles import cluster_head
from hetsched.journal.audit import record
from hetsched.placement.actions import export_cluster, import_cluster
from hetsched.policies.actions import known_policies_hint
from hetsched.policies.models import Policy
from hetsched.storage.write_lock import write_transaction

from .. import bodies
from ..documents import Document, Request, page_of
from ..etags import check_match, locked
from ..nodes.facts import quantities
from ..pagination import LIST_QUERIES, flag
from ..resources import ResourceView
from ..views import ApiView, answer, send
from .connections import ConnectionDetail, NewConnection, cluster_tag, connect_with, connection_of, find


class NewCluster(NewConnection, frozen=True, kw_only=True):
    """Cluster to add; a cluster of kind `kubernetes` needs a connection.

    `namespaces` lists the namespaces that submissions may use. `shadowOf` names the scheduler to compare with in shadow
    mode.
    """

    name: str
    kind: Literal["offline", "demo", "kubernetes"] = "offline"
    policy: str = "hetsched"


class Inventory(Request, frozen=True):
    """The files to import, as a JSON document."""

    manifest: str | dict[str, Any]
    reason: str = ""


class ClusterDetail(Document, frozen=True):
    """A cluster and its totals; `cpu`, `memory` and `gpu` are the ratios (0-1) of requests to capacity."""

    name: str
    kind: str
    policy: str
    revision: int
    inventory_revision: int
    node_count: int
    ready_count: int
    card_count: int
    cards_installed: int
    cpu: float | None
    memory: float | None
    gpu: float | None
    capacity: dict[str, str]
    requested: dict[str, str]
    created_at: Any
    connection: ConnectionDetail | None = None


class Imported(ClusterDetail, frozen=True):
    """Cluster after an import; `warnings` lists parts of the files that the simulation ignores, and is absent if there
    are none.
    """

    warnings: list[ManifestWarning] | msgspec.UnsetType = msgspec.UNSET


class ClustersView(ResourceView):
    actions: ClassVar = {"GET": Action.VIEW, "POST": Action.OPERATE}
    queries: ClassVar = LIST_QUERIES
    queryset = Cluster.objects.defer("definitions")
    ordering = "id"

    def document(self, row: Cluster) -> ClusterDetail:
        return _document(row)

    @extend_schema(responses=page_of(ClusterDetail))
    def get(self, request: Any) -> HttpResponse:
        """List clusters."""
        return self.list(request)

    @extend_schema(request=NewCluster, responses={201: ClusterDetail})
    def post(self, request: Any) -> HttpResponse:
        """Add an empty cluster, or connect a live one."""
        asked = bodies.read(request, NewCluster)
        with write_transaction():
            cluster = create_cluster(
                name=asked.name,
                kind=asked.kind,
                policy_name=_known_policy(asked.policy),
                actor=self.subject,
                reason=require_reason(asked.reason),
            )
            if asked.kind == "kubernetes" or asked.kubeconfig is not None or asked.in_cluster:
                connect_with(cluster, asked, self.subject)
        shown = _detail(cluster, self.subject)
        headers = {"Location": f"{request.path}{cluster.name}/", "ETag": cluster_tag(cluster, shown.connection)}
        return answer(request, shown, status=201, headers=headers)


class ClusterView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}

    @extend_schema(responses=ClusterDetail)
    def get(self, request: Any, name: str) -> HttpResponse:
        """Show a cluster."""
        cluster = find(name)
        shown = _detail(cluster, self.subject)
        return answer(request, shown, etag=cluster_tag(cluster, shown.connection, self.subject))


class ClusterImportView(ApiView):
    actions: ClassVar = {"POST": Action.OPERATE}
    matched: ClassVar = {"POST": False}
    queries: ClassVar = {"reason": "Reason for the audit trail."}

    @extend_schema(
        request={
            "application/yaml": OpenApiTypes.STR,
            "application/json": Inventory,
            "text/csv": OpenApiTypes.STR,
        },
        responses=Imported,
    )
    def post(self, request: Any, name: str) -> HttpResponse:
        """Replace the content of a cluster with the uploaded files; needs If-Match if it has nodes."""
        cluster = find(name)
        asked = bodies.wrapped_document(request, Inventory) or Inventory(bodies.text(bodies.raw(request, large=True)))
        reason = require_reason(asked.reason or request.GET.get("reason", ""))
        content = parse_cluster([("import", bodies.source(asked.manifest))])
        with locked(cluster):
            current = find(name)
            check_match(request, cluster_tag(current), required=current.node_count > 0)
            import_cluster(content, name=name, kind=current.kind, actor=self.subject, reason=reason)
        cluster = find(name)
        warnings = list(content.warnings) or msgspec.UNSET
        imported = Imported(**msgspec.structs.asdict(_document(cluster)), warnings=warnings)
        return answer(request, imported, headers={"ETag": cluster_tag(cluster)})


class ClusterExportView(ApiView):
    cluster_wide = True
    actions: ClassVar = {"GET": Action.OPERATE}
    queries: ClassVar = {
        "reason": "Reason for the audit trail.",
        "anonymise": "true replaces names of people, teams, machines and workloads; decisions stay the same.",
    }

    @extend_schema(responses={200: OpenApiTypes.OBJECT})
    def get(self, request: Any, name: str) -> HttpResponse:
        """Export a cluster as Kubernetes objects; importing them results in the same decisions."""
        cluster = find(name)
        subject = self.subject
        nameless = flag(request, "anonymise")
        record(
            actor=subject.name,
            role=subject.role,
            action="cluster.export",
            obj=cluster,
            reason=require_reason(request.GET["reason"]) if request.GET.get("reason") else "",
            details={"anonymised": True} if nameless else {},
        )
        content = export_cluster(cluster)
        file = "cluster" if nameless else cluster.name
        headers = {"Content-Disposition": f'attachment; filename="{file}.json"'}
        text = write_cluster(anonymised(content) if nameless else content)
        return send(request, text, "application/json", headers=headers)


def _known_policy(name: str) -> str:
    if not Policy.objects.filter(name=name, active_version__gt=0).exists():
        message = Message("unknown policy {name}", name=repr(name[:80]))
        raise InputError("PolicyUnknown", message, place="policy", hint=known_policies_hint())
    return name


def _detail(cluster: Cluster, subject: Subject) -> ClusterDetail:
    return msgspec.structs.replace(_document(cluster), connection=connection_of(cluster, subject))


def _document(cluster: Cluster) -> ClusterDetail:
    head = cluster_head(cluster)
    return ClusterDetail(
        name=cluster.name,
        kind=cluster.kind,
        policy=cluster.policy_name,
        revision=cluster.revision,
        inventory_revision=cluster.inventory_revision,
        node_count=cluster.node_count,
        ready_count=cluster.ready_count,
        card_count=cluster.card_count,
        cards_installed=cluster.cards_installed,
        cpu=head["cpu"],
        memory=head["memory"],
        gpu=head["gpu"],
        capacity=quantities(cluster.capacity),
        requested=quantities(cluster.requested),
        created_at=cluster.created_at,
    )


routes = [
    path("clusters/", ClustersView.as_view()),
    path("clusters/<str:name>/", ClusterView.as_view()),
    path("clusters/<str:name>/import/", ClusterImportView.as_view()),
    path("clusters/<str:name>/export/", ClusterExportView.as_view()),
]
