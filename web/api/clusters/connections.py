"""`clusters/{name}/connection/` and `clusters/{name}/test/`: the connection to a live cluster, and a test of it.

A kubeconfig can be written but not read; a response shows the host, the namespaces, the informer process and the sync
state of each kind of object. A new connection needs If-Match and a reason. The test queries the API server with the
credentials that hetsched uses for this cluster.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

import msgspec
from django.db.models.functions import Now
from django.http import HttpResponse
from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.access.subject import Subject
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import Problem
from hetsched.contracts.message import Message
from hetsched.inventory.connection_check import Check, check_cluster
from hetsched.inventory.connections import connect, server_address
from hetsched.inventory.models import Cluster, Connection, Sync
from hetsched.inventory.staleness import current_staleness
from hetsched.journal import counters
from hetsched.policies.models import PolicyObject

from .. import bodies, request_scope
from ..documents import Document, Request
from ..etags import check_match, etag_of, locked, two_part
from ..views import ApiView, answer


class NewConnection(Request, frozen=True):
    """Connection of a live cluster; omitted fields stay unchanged.

    `shadowOf` names the scheduler to compare with in shadow mode; an empty value ends shadow mode. If `readPullSecrets`
    is true, hetsched reads the pull secrets of pods to look up their images. `discoveryKubeconfig` contains the
    credentials of the account that labels nodes; an empty value removes it.
    """

    reason: str
    kubeconfig: str | dict[str, Any] | None = None
    discovery_kubeconfig: str | dict[str, Any] | None = None
    context: str = ""
    in_cluster: bool = False
    namespaces: list[str] | str | None = None
    shadow_of: str | None = None
    read_pull_secrets: bool | None = None


class UnreadableObject(msgspec.Struct, frozen=True, rename="camel"):
    """Object that could not be read and is ignored."""

    name: str
    code: str
    message: str


class ResourceSync(msgspec.Struct, frozen=True, rename="camel"):
    """Sync state of one kind of object; `ageSeconds` is the time since the API server last responded for this kind."""

    resource: str
    synced_at: datetime | None
    alive_at: datetime | None
    age_seconds: float | None
    objects: int
    lists: int
    failures: int
    reason: str
    quarantined: list[UnreadableObject]


class ClusterPolicyState(msgspec.Struct, frozen=True, rename="camel"):
    """SchedulingPolicy object of a cluster: the latest policy version that was imported from it, and the problem if its
    current content cannot be imported.
    """

    name: str
    generation: int
    accepted: bool
    version: int
    code: str
    place: str
    message: str


class StaleFacts(msgspec.Struct, frozen=True, rename="camel"):
    """The reason why the data of a cluster is too old for decisions; `since` is the start of this state."""

    since: datetime
    reason: str


class ConnectionDetail(Document, frozen=True):
    """Connection and sync state of a live cluster; `server` is `host:port`, or `in-cluster`.

    In shadow mode hetsched makes no decisions for the cluster and writes nothing to it. `stale` is the reason why
    decisions are suspended, or null while the data is fresh; `factsAt` is the time up to which the data is current.
    """

    server: str
    namespaces: list[str]
    shadow_of: str | None
    read_pull_secrets: bool
    facts_at: datetime | None
    stale: StaleFacts | None
    follower: str | None
    failure: str
    follow_epoch: int
    resources: list[ResourceSync]
    policies: list[ClusterPolicyState]


class ConnectionTest(Document, frozen=True):
    """Result of a test, with one check per required permission and data source."""

    cluster: str
    ok: bool
    checks: list[Check]


def connection_of(cluster: Cluster, subject: Subject) -> ConnectionDetail | None:
    """Return the connection of a cluster, or None if the cluster is not live or not connected yet.

    Namespaces outside the caller's scope, and unreadable objects in them, are left out.
    """
    connection = Connection.objects.filter(cluster=cluster).first()
    if connection is None:
        return None
    held = Connection.objects.filter(cluster=cluster, follower_until__gte=Now()).exists()
    now, watched = timezone.now(), current_staleness(connection)
    return ConnectionDetail(
        server=server_address(connection),
        namespaces=[name for name in connection.enrolled_namespaces if subject.may_in(name)],
        shadow_of=connection.shadow_of or None,
        read_pull_secrets=connection.read_pull_secrets,
        facts_at=watched.facts_at,
        stale=None if watched.stale_since is None else StaleFacts(watched.stale_since, watched.reason),
        follower=connection.follower_id if held else None,
        failure=connection.failure,
        follow_epoch=connection.follower_epoch,
        resources=[_resource_sync(sync, now, subject) for sync in cluster.syncs.order_by("resource")],
        policies=[_policy(policy_object) for policy_object in PolicyObject.objects.filter(cluster=cluster, gone=False)],
    )


def cluster_tag(cluster: Cluster, shown: ConnectionDetail | None = None, subject: Subject | None = None) -> str:
    """Return the two-part ETag of a cluster: the state that a write depends on, then the frequently changing state.

    For a subject that is limited to namespaces, the tag is computed from `shown`, the document that it receives. Such a
    subject cannot write to clusters.
    """
    how: tuple[Any, ...] = ()
    if subject is None or subject.namespaces is None:
        rows = Connection.objects.filter(cluster=cluster).values_list(
            "sealed_kubeconfig", "server", "enrolled_namespaces", "shadow_of", "read_pull_secrets",
            "sealed_discovery_kubeconfig",
        )  # fmt: skip
        how = rows.first() or ()
    facts = etag_of(cluster.pk, cluster.inventory_revision, cluster.policy_name, *how)
    return two_part(facts, etag_of(cluster.pk, cluster.revision, encode(shown)))


def _resource_sync(sync: Sync, now: datetime, subject: Subject) -> ResourceSync:
    age = None if sync.alive_at is None else round(max((now - sync.alive_at).total_seconds(), 0.0), 1)
    return ResourceSync(
        resource=sync.resource,
        synced_at=sync.synced_at,
        alive_at=sync.alive_at,
        age_seconds=age,
        objects=sync.objects_count,
        lists=sync.relists,
        failures=sync.failures,
        reason=sync.reason,
        quarantined=[
            UnreadableObject(odd.name, odd.code, odd.message)
            for odd in sync.quarantined
            if "/" not in odd.name or subject.may_in(odd.name.partition("/")[0])
        ],
    )


def _policy(policy_object: PolicyObject) -> ClusterPolicyState:
    wrong = policy_object.problem or Problem("", "", Message(""))
    place, message = wrong.field, wrong.message
    return ClusterPolicyState(
        policy_object.name,
        policy_object.generation,
        policy_object.problem is None,
        policy_object.version,
        wrong.code,
        place,
        message,
    )


def connect_with(cluster: Cluster, asked: NewConnection, subject: Subject) -> None:
    """Create or change the connection of a cluster from the settings in a request."""
    connect(
        cluster,
        kubeconfig=asked.kubeconfig,
        context=asked.context,
        in_cluster=asked.in_cluster,
        enrolled_namespaces=None if asked.namespaces is None else bodies.names(asked.namespaces),
        shadow_of=asked.shadow_of,
        read_pull_secrets=asked.read_pull_secrets,
        discovery_kubeconfig=asked.discovery_kubeconfig,
        actor=subject,
        reason=asked.reason,
    )


class ConnectionView(ApiView):
    actions: ClassVar = {"PUT": Action.OPERATE}
    matched: ClassVar = {"PUT": True}

    @extend_schema(request=NewConnection, responses=ConnectionDetail)
    def put(self, request: Any, name: str) -> HttpResponse:
        """Change the connection or the enrolled namespaces; needs If-Match with the ETag of the cluster."""
        asked = bodies.read(request, NewConnection)
        cluster = find(name)
        with locked(cluster):
            check_match(request, cluster_tag(find(name)), required=True)
            connect_with(cluster, asked, self.subject)
        shown = connection_of(cluster, self.subject)
        return answer(request, shown, headers={"ETag": cluster_tag(find(name), shown)})


class ConnectionTestView(ApiView):
    actions: ClassVar = {"POST": Action.OPERATE}

    @extend_schema(request=None, responses=ConnectionTest)
    def post(self, request: Any, name: str) -> HttpResponse:
        """Test the connection: list missing permissions and data sources that do not respond."""
        checks = check_cluster(find(name))
        counters.flush()  # store the counts of the API calls that the test made
        return answer(request, ConnectionTest(name, all(check.ok for check in checks), checks))


def find(name: str) -> Cluster:
    """Return the cluster of this name. Raises: RequestRefused 404."""
    cluster = Cluster.objects.filter(name=name).first()
    if cluster is None:
        raise request_scope.no_cluster(name)
    return cluster


routes = [
    path("clusters/<str:name>/connection/", ConnectionView.as_view()),
    path("clusters/<str:name>/test/", ConnectionTestView.as_view()),
]
