"""`nodes/`: the list of nodes and the facts of one node; the module `node_actions` contains the operator actions.

Node names are unique in a cluster; `?cluster=` selects the cluster. A node's ETag has two parts, its facts and its
load: a cached copy is outdated if either has changed. A write conflicts only if the facts have changed, because
placements change the load all the time. A token that is limited to namespaces sees loads, but not the pods of other
namespaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponse
from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.contracts.documents import encode
from hetsched.contracts.message import namespace_of
from hetsched.engine.cluster.balance import node_balance
from hetsched.engine.cluster.columns import USAGE_RESOURCES
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.tiles import tile
from hetsched.placement.models import Reservation
from hetsched.placement.queries.zones import zones_at_risk
from hetsched.placement.scheduler_cache import cache_of
from hetsched.placement.scheduling_queue.node_backoffs import node_rejections

from .. import request_scope
from ..documents import Document, page_of
from ..etags import etag_of, two_part
from ..pagination import LIST_QUERIES
from ..resources import ResourceView
from ..views import answer
from . import facts

# Deferred columns: the full reports of each source, which are not needed to show a node.
HEAVY = ("facts__base", "facts__known", "facts__reported")
_COLUMNS = (
    "name", "isa_family", "isa", "pool", "ready", "unschedulable", "allocatable", "requested", "gpu_milli_used",
    "card_count", "cards_installed", "maintenance", "pods",
)  # fmt: skip


class NodeMaintenance(Document, frozen=True):
    """Number of GPUs and zones of a node that are in maintenance, the end of the last maintenance, and the reasons."""

    cards: int
    zones: int
    until: str
    reason: str


class NodeRow(Document, frozen=True):
    """A node in a list; `cpu`, `memory` and `gpu` are the ratios (0-1) of requests to capacity, or null if the node has
    none of the resource.

    `cards` is the number of GPUs that accept new pods. `cardsInstalled` also counts GPUs that are unhealthy or in
    maintenance, and is the capacity for `gpu`.
    """

    name: str
    family: str
    isa: str | None
    pool: str
    ready: bool
    cordoned: bool
    cpu: float | None
    memory: float | None
    gpu: float | None
    cards: int
    cards_installed: int
    maintenance: NodeMaintenance | None
    pods: int


class NodesView(ResourceView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {
        **request_scope.CLUSTER_QUERY,
        **LIST_QUERIES,
        "family": "Only nodes of this ISA family: riscv, arm, x86 or unknown.",
        "pool": "Only nodes of this pool.",
    }
    filters: ClassVar = {"family": "isa_family", "pool": "pool"}

    def get_queryset(self) -> QuerySet[Any]:
        cluster = request_scope.selected_cluster(self.request)
        return Node.objects.filter(cluster=cluster).values(*_COLUMNS)

    def document(self, row: dict[str, Any]) -> dict[str, Any]:
        return tile(Node(**row))

    @extend_schema(responses=page_of(NodeRow))
    def get(self, request: Any) -> HttpResponse:
        """List nodes by name."""
        return self.list(request)


class NodeResource(ResourceView):
    """Base of the views of a node of the selected cluster, or of a part of it; a write locks the cluster."""

    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = request_scope.CLUSTER_QUERY
    noun = "node"
    lookup_field = "name"

    def get_queryset(self) -> QuerySet[Node]:
        cluster = request_scope.selected_cluster(self.request)
        return Node.objects.select_related("cluster", "facts").defer(*HEAVY).filter(cluster=cluster)

    def document(self, row: Node) -> Any:
        """Return the document of a node, limited to what the caller may see."""
        return facts.node_detail(row, self.held(row), timezone.now(), is_visible=self.subject.may_in)

    def tag(self, row: Node) -> str:
        return etag(row, is_visible=self.subject.may_in)

    def lock_of(self, row: Node) -> Cluster:
        return row.cluster

    def held(self, node: Node) -> Sequence[Reservation]:
        """Return the active reservations on the node that the caller may see."""
        return [reservation for reservation in _held(node) if self.subject.may_in(reservation.pod.namespace)]


def _held(node: Node) -> QuerySet[Reservation]:
    rows = Reservation.objects.filter(node=node, active=True)
    return rows.select_related("pod").defer("pod__spec").order_by("pod_id")


class NodeView(NodeResource):
    @extend_schema(responses=facts.NodeDetail)
    def get(self, request: Any, name: str) -> HttpResponse:
        """Show a node."""
        return self.retrieve(request)


class NodeIsaView(NodeResource):
    @extend_schema(responses=facts.IsaFacts)
    def get(self, request: Any, name: str) -> HttpResponse:
        """Show the instruction sets of a node."""
        return self.retrieve(request)

    def document(self, row: Node) -> facts.IsaFacts:
        return facts.isa_facts(row, self.held(row), timezone.now())


class NodeGpuView(NodeResource):
    @extend_schema(responses=facts.GpuFacts)
    def get(self, request: Any, name: str) -> HttpResponse:
        """Show a node's GPUs and their holders."""
        return self.retrieve(request)

    def document(self, row: Node) -> facts.GpuFacts:
        return facts.gpu_facts(row, _held(row), timezone.now(), is_visible=self.subject.may_in)


class NodeNumaView(NodeResource):
    @extend_schema(responses=facts.NumaFacts)
    def get(self, request: Any, name: str) -> HttpResponse:
        """Show the NUMA zones of a node and the pods that hold their CPUs."""
        return self.retrieve(request)

    def document(self, row: Node) -> facts.NumaFacts:
        at_risk = zones_at_risk(row, _held(row))
        return facts.numa_facts(row, self.held(row), timezone.now(), at_risk=at_risk)


class NodeBalanceView(NodeResource):
    @extend_schema(responses=facts.BalanceFacts)
    def get(self, request: Any, name: str) -> HttpResponse:
        """Show the balance of a node's resource use."""
        return answer(request, balance_of(self.get_object()))


def balance_of(node: Node) -> facts.BalanceFacts:
    """Return the balance of a node as the engine computes it from the columns of the scheduler's snapshot."""
    with cache_of(node.cluster_id).locked_snapshot() as loaded:
        row = loaded.state.row_of[node.name]
        used = {res: int(loaded.state.columns.field("used")[i, row]) for i, res in enumerate(USAGE_RESOURCES)}
        balance = float(node_balance(loaded.state)[row])
        stale = node.name in loaded.state.stale()
    return facts.balance_facts(node, used, balance, timezone.now(), stale=stale)


def etag(node: Node, *, is_visible: Callable[[str], bool] = lambda _: True) -> str:
    """Return the node's two-part tag: the tag of its facts, a dot, and the tag of its load, limited to what the caller
    may see.
    """
    row = facts.stated(node)
    reviewed = (row.quarantined, row.overrides) if row is not None else ()
    reported = encode((node.report, facts.conflict_details(node, is_visible), reviewed))
    stated = etag_of(node.pk, node.cordoned_by_operator, reported, node.updated_at.isoformat())
    refused = [row.pk for row in node_rejections(node, timezone.now()) if is_visible(namespace_of(row.pod))]
    load = etag_of(node.pods, node.gpu_milli_used, encode(node.requested, order="sorted"), refused)
    return two_part(stated, load)


routes = [
    path("nodes/", NodesView.as_view()),
    path("nodes/<str:name>/", NodeView.as_view()),
    path("nodes/<str:name>/isa/", NodeIsaView.as_view()),
    path("nodes/<str:name>/gpu/", NodeGpuView.as_view()),
    path("nodes/<str:name>/numa/", NodeNumaView.as_view()),
    path("nodes/<str:name>/balance/", NodeBalanceView.as_view()),
]
