"""`nodes/`: the inventory and the facts of one node; `node_actions` has the operator actions.

Node names are unique in a cluster; `?cluster=` selects it. A node's ETag has two parts, its facts and its load: a
cached copy is outdated if either changed; a write conflicts only if the facts changed, because placements change the
load all the time. A token that is limited to namespaces sees loads, but no pods of other namespaces.
"""

from __future__ import annotations

from collections.abc import Callable
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
from hetsched.inventory.models import Node
from hetsched.inventory.tiles import tile
from hetsched.placement.models import Reservation
from hetsched.placement.queries.zones import zones_at_risk
from hetsched.placement.scheduler_cache import cache_of
from hetsched.placement.scheduling_queue.node_backoffs import kept_off

from .. import request_scope
from ..documents import Document, Rows, page_of
from ..etags import etag_of, two_part
from ..pagination import LIST_QUERIES, page
from ..problems import not_found
from ..views import ApiView, answer
from . import facts

# The full reports of each source are not needed to show a node.
HEAVY = ("facts__base", "facts__known", "facts__reported")
_COLUMNS = (
    "name", "isa_family", "isa", "pool", "ready", "unschedulable", "allocatable", "requested", "gpu_milli_used",
    "card_count", "cards_installed", "maintenance", "pods",
)  # fmt: skip


class NodeMaintenance(Document, frozen=True):
    """Numbers of GPUs and zones of a node in maintenance, the end of the last maintenance, and the reasons."""

    cards: int
    zones: int
    until: str
    reason: str


class NodeRow(Document, frozen=True):
    """A node in a list; `cpu`, `memory` and `gpu` are ratios 0-1 of requested to capacity, null without any.

    `cards` take new pods; `cardsInstalled` counts those in maintenance or unhealthy too, and is the capacity of `gpu`.
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


class NodesView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {
        **request_scope.CLUSTER_QUERY,
        **LIST_QUERIES,
        "family": "Only nodes of this ISA family: riscv, arm, x86 or unknown.",
        "pool": "Only nodes of this pool.",
    }

    @extend_schema(responses=page_of(NodeRow))
    def get(self, request: Any) -> HttpResponse:
        """List nodes by name."""
        rows = Node.objects.filter(cluster=request_scope.cluster_of(request.GET.get("cluster", "")))
        rows = request_scope.by_query(request, rows, family="isa_family", pool="pool")
        found, following = page(request, rows.values(*_COLUMNS), "name")
        return answer(request, Rows([tile(Node(**values)) for values in found], following))


class NodeScopedView(ApiView):
    """Base of the views under one node."""

    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = request_scope.CLUSTER_QUERY
    describe: ClassVar[Callable[..., Any]]

    def get(self, request: Any, name: str) -> HttpResponse:
        node = self.find(name)
        return answer(
            request,
            type(self).describe(node, self.held(node), timezone.now()),
            etag=etag(node, sees=self.subject.may_in),
        )

    def find(self, name: str) -> Node:
        cluster = request_scope.cluster_of(self.request.GET.get("cluster", ""))
        node = Node.objects.select_related("cluster", "facts").defer(*HEAVY).filter(cluster=cluster, name=name).first()
        if node is None:
            raise not_found("node", name)
        return node

    def held(self, node: Node) -> list[Reservation]:
        """Return the active reservations on the node that the caller may see."""
        return [reservation for reservation in _held(node) if self.subject.may_in(reservation.pod.namespace)]


def detail(view: NodeScopedView, node: Node) -> facts.NodeDetail:
    """Return the document of a node, as far as the caller may see it."""
    return facts.node_detail(node, view.held(node), timezone.now(), sees=view.subject.may_in)


def _held(node: Node) -> QuerySet[Reservation]:
    rows = Reservation.objects.filter(node=node, active=True)
    return rows.select_related("pod").defer("pod__spec").order_by("pod_id")


class NodeView(NodeScopedView):
    @extend_schema(responses=facts.NodeDetail)
    def get(self, request: Any, name: str) -> HttpResponse:
        """Show a node."""
        node = self.find(name)
        return answer(request, detail(self, node), etag=etag(node, sees=self.subject.may_in))


@extend_schema(responses=facts.IsaFacts, description="Show the instruction sets of a node.")
class NodeIsaView(NodeScopedView):
    describe = facts.isa_facts


class NodeGpuView(NodeScopedView):
    @extend_schema(responses=facts.GpuFacts)
    def get(self, request: Any, name: str) -> HttpResponse:
        """Show a node's GPUs and their holders."""
        node = self.find(name)
        shown = facts.gpu_facts(node, _held(node), timezone.now(), sees=self.subject.may_in)
        return answer(request, shown, etag=etag(node, sees=self.subject.may_in))


@extend_schema(
    responses=facts.NumaFacts, description="Show the NUMA zones of a node and the pods that hold their CPUs."
)
class NodeNumaView(NodeScopedView):
    @extend_schema(responses=facts.NumaFacts)
    def get(self, request: Any, name: str) -> HttpResponse:
        """Show a node's NUMA zones, the holders of their CPUs, and the pods at risk."""
        node = self.find(name)
        at_risk = zones_at_risk(node, _held(node))
        shown = facts.numa_facts(node, self.held(node), timezone.now(), at_risk=at_risk)
        return answer(request, shown, etag=etag(node, sees=self.subject.may_in))


class NodeBalanceView(NodeScopedView):
    @extend_schema(responses=facts.BalanceFacts)
    def get(self, request: Any, name: str) -> HttpResponse:
        """Show the balance of a node's use."""
        return answer(request, balance_of(self.find(name)))


def balance_of(node: Node) -> facts.BalanceFacts:
    """Return the balance of a node from the engine's own columns."""
    with cache_of(node.cluster_id).held() as loaded:
        row = loaded.state.row_of[node.name]
        used = {res: int(loaded.state.columns.field("used")[i, row]) for i, res in enumerate(USAGE_RESOURCES)}
        balance = float(node_balance(loaded.state)[row])
        stale = node.name in loaded.state.stale()
    return facts.balance_facts(node, used, balance, timezone.now(), stale=stale)


def etag(node: Node, *, sees: Callable[[str], bool] = lambda _: True) -> str:
    """Return the node's two-part tag: its facts, a dot, its load, as far as the caller may see them."""
    row = facts.stated(node)
    reviewed = (row.quarantined, row.overrides) if row is not None else ()
    reported = encode((node.report, facts.doubt_facts(node, sees), reviewed))
    stated = etag_of(node.pk, node.cordoned_by_operator, reported, node.updated_at.isoformat())
    refused = [row.pk for row in kept_off(node, timezone.now()) if sees(namespace_of(row.pod))]
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
