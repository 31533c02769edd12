"""How a live cluster is reached: connections are written, and opened, here only.

Problem: whoever can read the database must not become administrator of every cluster, and a connection that suddenly
leads to another cluster would make everything of the first look gone.
Rule: of a kubeconfig one context is kept, sealed for this cluster; it is opened where calls are made and shown nowhere.
Only hosts that the deployment names (`HETSCHED_CLUSTER_HOSTS`, any where it names none) are called. Whoever follows
the cluster by the connection of before loses its lease at the same moment. The cluster on the other side is known by
the uid of its namespace kube-system: once seen, no other is followed under this name.
Invariant: no credential stands in an audit entry, an error, a log record or a text made of these rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import F

from hetsched.contracts.errors import InputError
from hetsched.contracts.workload import is_ours
from hetsched.journal import counters, figures
from hetsched.journal.audit import Actor, record
from hetsched.storage.prepared_queries import Given, Prepared
from hetsched.storage.sealed_secrets import seal, unseal

from .actions import require_reason
from .models import DNS_LABEL, Cluster, ClusterKind, Connection

if TYPE_CHECKING:
    from hetsched.adapters.kubernetes.api import Api

MOST_NAMESPACES = 1000
_HOME = "/api/v1/namespaces/kube-system"
# Calls of this process by cluster, with what their connection was made of: connections to a server are kept open.
_apis: dict[int, tuple[tuple[str, str], Api]] = {}


def connect(
    cluster: Cluster,
    *,
    kubeconfig: Any = None,
    context: str = "",
    in_cluster: bool = False,
    enrolled_namespaces: Sequence[str] | None = None,
    shadow_of: str | None = None,
    read_pull_secrets: bool | None = None,
    discovery_kubeconfig: Any = None,
    actor: Actor,
    reason: str,
) -> Connection:
    """Say how a live cluster is reached, for the first time or anew; what is not given stays as it is.

    What is so already changes nothing and is not audited again. `kubeconfig` is its text or its document;
    `enrolled_namespaces` are those that submissions may use. `shadow_of` names the scheduler in whose shadow the
    cluster is followed, empty ends that; in shadow nothing is ever written to it. `read_pull_secrets`: those that pods
    name are read where that is granted, to look their images up.
    Raises: InputError `ClusterNotLive`, `ConnectionUnclear`, `ClusterHostNotAllowed`, `NamespaceInvalid`,
    `ShadowUnclear`, `ReasonMissing`, `SecretKeyMissing`, or what a kubeconfig is refused for.
    """
    reason = require_reason(reason)
    if cluster.kind != ClusterKind.KUBERNETES:
        raise InputError("ClusterNotLive", f"cluster {cluster.name} is {cluster.kind} and has no API server")
    if in_cluster and (kubeconfig is not None or context):
        raise InputError("ConnectionUnclear", "give a kubeconfig or say in-cluster, not both", place="inCluster")
    kept, server = _kept(kubeconfig, context)
    discovering = None if discovery_kubeconfig is None else _kept(discovery_kubeconfig or None, "")[0]
    namespaces = None if enrolled_namespaces is None else _checked(enrolled_namespaces)
    if shadow_of and (is_ours(shadow_of) or not re.fullmatch(DNS_LABEL.regex, shadow_of)):
        message = f"{shadow_of[:80]!r} is not the name of another scheduler"
        raise InputError("ShadowUnclear", message, place="shadowOf", hint="Kubernetes' own is default-scheduler")
    with transaction.atomic():
        known = Connection.objects.select_for_update().filter(cluster=cluster).first()
        if known is None and not (kept or in_cluster):
            raise InputError(
                "ConnectionUnclear", "a live cluster needs a kubeconfig, or in-cluster", place="kubeconfig",
                hint="kubectl config view --raw --flatten --minify writes one",
            )  # fmt: skip
        changed: dict[str, Any] = {}
        if (kept or in_cluster) and (known is None or _opened(known, cluster) != kept):
            sealed = seal(kept, purpose=_purpose(cluster)) if kept else ""
            changed = {"sealed_kubeconfig": sealed, "server": server, "failure": ""}
        if namespaces is not None and (known is None or known.enrolled_namespaces != namespaces):
            changed["enrolled_namespaces"] = namespaces
        if shadow_of is not None and (known.shadow_of if known is not None else "") != shadow_of:
            changed["shadow_of"] = shadow_of
        if read_pull_secrets is not None and (known is not None and known.read_pull_secrets) != read_pull_secrets:
            changed["read_pull_secrets"] = read_pull_secrets
        if discovering is not None and (known is None or _discovers(known, cluster) != discovering):
            sealed = seal(discovering, purpose=_purpose(cluster, "discovery")) if discovering else ""
            changed["sealed_discovery_kubeconfig"] = sealed
        if known is not None and not changed:
            return known
        # What discovery found was found by another connection.
        connection, _ = Connection.objects.update_or_create(cluster=cluster, defaults={**changed, "discovery": None})
        if changed.keys() & {"server", "shadow_of"}:
            Connection.objects.filter(cluster=cluster).update(
                follower_epoch=F("follower_epoch") + 1, follower_id="", follower_until=None
            )
        record(
            actor=actor.name,
            role=actor.role,
            action="cluster.connect",
            obj=cluster,
            reason=reason,
            details={
                "server": where(connection),
                "namespaces": connection.enrolled_namespaces,
                "shadowOf": connection.shadow_of,
                "readPullSecrets": connection.read_pull_secrets,
                "discovers": bool(connection.sealed_discovery_kubeconfig),
            },
        )
    connection.refresh_from_db()
    return connection


def in_shadow(cluster_id: int) -> bool:
    """Tell whether a cluster is followed in shadow of another scheduler, so that nothing is decided for it."""
    return bool(_IN_SHADOW(cluster=cluster_id))


_IN_SHADOW = Prepared(
    lambda: Connection.objects.filter(cluster_id=Given("cluster")).exclude(shadow_of="").values_list("cluster_id")
)


def where(connection: Connection) -> str:
    """Return `host:port` of the API server, or `in-cluster`."""
    from hetsched.adapters.kubernetes.kubeconfig import host_of

    return host_of(connection.server) if connection.server else "in-cluster"


def api_of(cluster: Cluster) -> Api:
    """Return calls to a live cluster as who we are there; one pool of connections per process and cluster.

    Raises: InputError `ClusterNotConnected`, `SecretKeyChanged`, `ClusterHostNotAllowed`, `NotInCluster`.
    """
    from hetsched.adapters.kubernetes.api import Api
    from hetsched.adapters.kubernetes.connection import from_kubeconfig, inside

    connection = Connection.objects.filter(cluster=cluster).first()
    if connection is None:
        raise InputError("ClusterNotConnected", f"cluster {cluster.name} has no connection")
    made_of = connection.sealed_kubeconfig, connection.shadow_of
    known = _apis.get(cluster.pk)
    if known is not None and known[0] == made_of:
        return known[1]
    if connection.sealed_kubeconfig:
        _refuse_foreign(connection.server)
        kept = unseal(connection.sealed_kubeconfig, purpose=_purpose(cluster))
        configuration = from_kubeconfig(msgspec.json.decode(kept))
    else:
        configuration = inside()
    name = cluster.name
    api = Api(
        configuration,
        told=lambda verb, status: counters.add(figures.API_REQUESTS, name, verb, str(status)),
        reads=bool(connection.shadow_of),
    )
    _apis[cluster.pk] = (made_of, api)
    return api


def discovery_api(cluster: Cluster) -> tuple[Api, str]:
    """Return the calls that discovery makes to a live cluster, and why it must not write; empty where it may.

    Inside a cluster that is as whom this process is there. Raises: as `api_of`.
    """
    from hetsched.adapters.kubernetes.api import Api
    from hetsched.adapters.kubernetes.connection import from_kubeconfig, inside
    from hetsched.adapters.kubernetes.kubeconfig import Access

    connection = Connection.objects.filter(cluster=cluster).first()
    if connection is None:
        raise InputError("ClusterNotConnected", f"cluster {cluster.name} has no connection")
    if connection.shadow_of:
        return api_of(cluster), f"the cluster is followed in shadow of {connection.shadow_of}"
    if not connection.sealed_discovery_kubeconfig and connection.sealed_kubeconfig:
        return api_of(cluster), "the connection has no kubeconfig for discovery"
    if connection.sealed_discovery_kubeconfig:
        kept = unseal(connection.sealed_discovery_kubeconfig, purpose=_purpose(cluster, "discovery"))
        document = msgspec.json.decode(kept)
        _refuse_foreign(Access(document).server)
        configuration = from_kubeconfig(document)
    else:
        configuration = inside()
    name = cluster.name
    told = lambda verb, status: counters.add(figures.API_REQUESTS, name, verb, str(status))  # noqa: E731
    return Api(configuration, agent="hetsched-discovery", told=told), ""


def check_identity(cluster: Cluster, api: Api) -> str:
    """Return the uid of the cluster that answers; the first one that ever did is the cluster.

    It has one ledger: under a second name only what stands in the shadow of another scheduler may look at it.

    Raises: InputError `AnotherCluster`, `ClusterConnectedTwice`; ApiFailure.
    """
    uid = str(msgspec.json.decode(api.get(_HOME))["metadata"]["uid"])
    acting = Connection.objects.filter(shadow_of="")
    twin = acting.filter(cluster_uid=uid).exclude(cluster=cluster).values_list("cluster__name", flat=True).first()
    if twin is not None and acting.filter(cluster=cluster).exists():
        raise InputError(
            "ClusterConnectedTwice",
            f"what answers as {cluster.name} is scheduled as cluster {twin} already",
            hint=f"Use {twin}, or disconnect one of the two",
        )
    Connection.objects.filter(cluster=cluster, cluster_uid="").update(cluster_uid=uid)
    known = Connection.objects.values_list("cluster_uid", flat=True).get(cluster=cluster)
    if known != uid:
        raise InputError(
            "AnotherCluster",
            f"what answers as {cluster.name} is another cluster than before (kube-system {uid}, not {known})",
            hint="Connect the cluster of before again, or add this one under another name",
        )
    return uid


def _opened(connection: Connection, cluster: Cluster) -> str | None:
    """Return what is kept of the kubeconfig; empty where there is none, None where it does not open any more."""
    try:
        return connection.sealed_kubeconfig and unseal(connection.sealed_kubeconfig, purpose=_purpose(cluster))
    except InputError:
        return None


def _discovers(connection: Connection, cluster: Cluster) -> str | None:
    """Return what is kept of discovery's kubeconfig, as `_opened` does."""
    try:
        sealed = connection.sealed_discovery_kubeconfig
        return sealed and unseal(sealed, purpose=_purpose(cluster, "discovery"))
    except InputError:
        return None


def _purpose(cluster: Cluster, whose: str = "") -> str:
    return f"{whose} kubeconfig of {cluster.name}".strip()


def _kept(kubeconfig: Any, context: str) -> tuple[str, str]:
    """Return what is kept of a kubeconfig, and its server; of none, nothing."""
    if kubeconfig is None:
        return "", ""
    from hetsched.adapters.kubernetes.kubeconfig import Access, one_context, read

    document = read(kubeconfig.encode()) if isinstance(kubeconfig, str) else kubeconfig
    kept = one_context(document, context=context)
    access = Access(kept)
    if len(access.server) > 300:
        raise InputError("KubeconfigMalformed", "it is longer than 300 characters", place="clusters.cluster.server")
    _refuse_foreign(access.server)
    return msgspec.json.encode(kept).decode(), access.server


def _refuse_foreign(server: str) -> None:
    from hetsched.adapters.kubernetes.kubeconfig import host_of

    host = host_of(server)
    allowed = settings.HETSCHED_CLUSTER_HOSTS
    if allowed and {host, host.rpartition(":")[0]}.isdisjoint(allowed):
        raise InputError(
            "ClusterHostNotAllowed",
            f"this server does not connect to {host}",
            place="clusters.cluster.server",
            hint="Its operator lists the API servers it may use in HETSCHED_CLUSTER_HOSTS",
        )


def _checked(namespaces: Sequence[str]) -> list[str]:
    if len(namespaces) > MOST_NAMESPACES:
        raise InputError("NamespaceInvalid", f"more than {MOST_NAMESPACES} namespaces", place="namespaces")
    for name in namespaces:
        if not re.fullmatch(DNS_LABEL.regex, name):
            raise InputError(
                "NamespaceInvalid", f"{name[:80]!r} is no namespace", place="namespaces", hint=str(DNS_LABEL.message)
            )
    return sorted(set(namespaces))
