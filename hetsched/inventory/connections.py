"""Connections to live clusters: the only module that stores and opens them.

Read access to the database must not grant access to the clusters. A connection that is redirected to another cluster
must be rejected, or all objects of the previous cluster would look deleted. One context of a kubeconfig is stored,
sealed for this cluster. It is decrypted only for API calls and never shown. Only hosts in `HETSCHED_CLUSTER_HOSTS` are
called; an empty setting allows every host. A kubeconfig may request its credentials from a program only if
`HETSCHED_EXEC_CREDENTIALS` lists the program. Changing a connection ends the lease of the informer that uses the
previous connection. A cluster is identified by the uid of its namespace kube-system: once the uid is stored, no other
cluster is accepted under this name.
Invariant: no credential appears in an audit entry, an error, a log record or the text form of a row.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from django.conf import settings
from django.db.models import F

from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.workload import is_ours
from hetsched.journal import counters, metric_names
from hetsched.journal.audit import Actor, record
from hetsched.storage.sealed_secrets import seal, unseal
from hetsched.storage.write_lock import write_transaction

from .actions import require_reason
from .models import DNS_LABEL, Cluster, ClusterKind, Connection
from .node_loads import current_columns

if TYPE_CHECKING:
    from hetsched.adapters.exec_credentials.allowed_programs import ExecPolicy
    from hetsched.adapters.kubernetes.api import Api

MOST_NAMESPACES = 1000
_HOME = "/api/v1/namespaces/kube-system"
# API clients of this process by cluster, each with the settings that it was created from, and a digest of those that a
# renewed token leaves unchanged. The clients are cached because they keep their server connections open.
_apis: dict[int, tuple[tuple[str, str], bytes, Api]] = {}
# Locks by cluster, so that a slow program for the credentials of one cluster delays no other cluster.
_locks: dict[int, threading.Lock] = {}


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
    """Create or change the connection of a live cluster; omitted settings stay unchanged.

    A call that changes nothing does not write an audit entry. `kubeconfig` is YAML text or a parsed document.
    `enrolled_namespaces` lists the namespaces that submissions may use. `shadow_of` names the scheduler whose decisions
    are compared in shadow mode; an empty name ends shadow mode, in which nothing is written to the cluster.
    `read_pull_secrets` allows reading the pull secrets of pods, where RBAC grants it, to look up their images.
    Raises: InputError `ClusterNotLive`, `ConnectionUnclear`, `ClusterHostNotAllowed`, `NamespaceInvalid`,
    `ShadowUnclear`, `ReasonMissing`, `SecretKeyMissing`, or the errors of parsing the kubeconfig.
    """
    reason = require_reason(reason)
    if cluster.kind != ClusterKind.KUBERNETES:
        message = Message(
            "cluster {cluster} has kind {kind} and no API server", cluster=cluster.name, kind=cluster.kind
        )
        hint = "Add a cluster of the kind kubernetes, or leave out the connection"
        raise InputError("ClusterNotLive", message, hint=hint)
    if in_cluster and (kubeconfig is not None or context):
        message = Message("kubeconfig and in-cluster cannot be combined")
        raise InputError("ConnectionUnclear", message, place="inCluster", hint="Remove one of them")
    kept, server = _read_context(kubeconfig, context)
    discovering = None if discovery_kubeconfig is None else _read_context(discovery_kubeconfig or None, "")[0]
    namespaces = None if enrolled_namespaces is None else _check_namespaces(enrolled_namespaces)
    if shadow_of and (is_ours(shadow_of) or not re.fullmatch(DNS_LABEL.regex, shadow_of)):
        message = Message("{text} is not the name of another scheduler", text=repr(shadow_of[:80]))
        raise InputError(
            "ShadowUnclear", message, place="shadowOf", hint="The default scheduler of Kubernetes is default-scheduler"
        )
    with write_transaction():
        known = Connection.objects.select_for_update().filter(cluster=cluster).first()
        if known is None and not (kept or in_cluster):
            raise InputError(
                "ConnectionUnclear", "a live cluster requires kubeconfig or in-cluster", place="kubeconfig",
                hint="Create a kubeconfig with kubectl config view --raw --flatten --minify",
            )  # fmt: skip
        changed: dict[str, Any] = {}
        if (kept or in_cluster) and (known is None or _decrypt_kubeconfig(known, cluster) != kept):
            sealed = seal(kept, purpose=purpose_of(cluster)) if kept else ""
            changed = {"sealed_kubeconfig": sealed, "server": server, "failure": ""}
        if namespaces is not None and (known is None or known.enrolled_namespaces != namespaces):
            changed["enrolled_namespaces"] = namespaces
        if shadow_of is not None and (known.shadow_of if known is not None else "") != shadow_of:
            changed["shadow_of"] = shadow_of
        if read_pull_secrets is not None and (known is not None and known.read_pull_secrets) != read_pull_secrets:
            changed["read_pull_secrets"] = read_pull_secrets
        if discovering is not None and (known is None or _decrypt_discovery_kubeconfig(known, cluster) != discovering):
            sealed = seal(discovering, purpose=purpose_of(cluster, "discovery")) if discovering else ""
            changed["sealed_discovery_kubeconfig"] = sealed
        if known is not None and not changed:
            return known
        # The stored discovery result and the state of the tokens belong to the previous connection.
        stale = {"discovery": None, "stored_tokens": ()}
        connection, _ = Connection.objects.update_or_create(cluster=cluster, defaults={**changed, **stale})
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
                "server": server_address(connection),
                "namespaces": connection.enrolled_namespaces,
                "shadowOf": connection.shadow_of,
                "readPullSecrets": connection.read_pull_secrets,
                "discovers": bool(connection.sealed_discovery_kubeconfig),
                **_programs_of(connection=kept, discovery=discovering),
            },
        )
    connection.refresh_from_db()
    return connection


def is_in_shadow(cluster_id: int) -> bool:
    """Return whether a cluster is in shadow mode, in which its pods are not scheduled."""
    try:
        return bool(current_columns(cluster_id).shadow_of)
    except Cluster.DoesNotExist:
        return False


def server_address(connection: Connection) -> str:
    """Return `host:port` of the API server, or `in-cluster`."""
    from hetsched.adapters.kubernetes.connections.kubeconfig import host_of

    return host_of(connection.server) if connection.server else "in-cluster"


def api_of(cluster: Cluster) -> Api:
    """Return the API client of a live cluster. Each process has one connection pool per cluster.

    If only the token was renewed, the existing client continues with the new token, also in other threads.
    Raises: InputError `ClusterNotConnected`, `SecretKeyChanged`, `ClusterHostNotAllowed`, `NotInCluster`,
    `KubeconfigRefused`, or the errors of a program for credentials.
    """
    # The lock includes reading the row, so that an older row never replaces the client or the token of a newer one.
    with _locks.setdefault(cluster.pk, threading.Lock()):
        return _current_api(cluster)


def _current_api(cluster: Cluster) -> Api:
    """Return the cached client if it fits the stored connection, else update or replace it."""
    from hetsched.adapters.kubernetes.api import Api
    from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig, inside
    from hetsched.adapters.kubernetes.connections.kubeconfig import Access

    connection = Connection.objects.filter(cluster=cluster).first()
    if connection is None:
        raise _not_connected(cluster)
    made_of = connection.sealed_kubeconfig, connection.shadow_of
    known = _apis.get(cluster.pk)
    if known is not None and known[0] == made_of:
        return known[2]
    lasting = b""
    if connection.sealed_kubeconfig:
        check_server(connection.server)
        kept = unseal(connection.sealed_kubeconfig, purpose=purpose_of(cluster))
        document = msgspec.json.decode(kept)
        lasting = _lasting_settings(document, connection.shadow_of)
        if known is not None and lasting and known[1] == lasting:
            known[2].use_token(Access(document).token)
            _apis[cluster.pk] = (made_of, lasting, known[2])
            return known[2]
        configuration = from_kubeconfig(document, programs=allowed_programs())
    else:
        configuration = inside()
    name = cluster.name
    api = Api(
        configuration,
        count_call=lambda verb, status: counters.add(metric_names.API_REQUESTS, name, verb, str(status)),
        reads=bool(connection.shadow_of),
    )
    _apis[cluster.pk] = (made_of, lasting, api)
    return api


def _lasting_settings(document: Any, shadow_of: str) -> bytes:
    """Return a digest of a connection without its token, or nothing if the connection has no token."""
    user = dict(document["users"][0]["user"])
    if not user.pop("token", ""):
        return b""
    lasting = [document["clusters"][0]["cluster"], user, shadow_of]
    return hashlib.sha256(encode(lasting)).digest()


def discovery_api(cluster: Cluster) -> tuple[Api, Message]:
    """Return the API client for discovery, and the reason why discovery must not write (empty if it may).

    Inside a cluster, the client uses the service account of this process. Raises: the same errors as `api_of`.
    """
    from hetsched.adapters.kubernetes.api import Api
    from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig, inside
    from hetsched.adapters.kubernetes.connections.kubeconfig import Access

    connection = Connection.objects.filter(cluster=cluster).first()
    if connection is None:
        raise _not_connected(cluster)
    if connection.shadow_of:
        message = Message("the cluster is in shadow mode: {scheduler} places its pods", scheduler=connection.shadow_of)
        return api_of(cluster), message
    if not connection.sealed_discovery_kubeconfig and connection.sealed_kubeconfig:
        return api_of(cluster), Message("the connection has no kubeconfig for discovery")
    if connection.sealed_discovery_kubeconfig:
        kept = unseal(connection.sealed_discovery_kubeconfig, purpose=purpose_of(cluster, "discovery"))
        document = msgspec.json.decode(kept)
        check_server(Access(document).server)
        configuration = from_kubeconfig(document, programs=allowed_programs())
    else:
        configuration = inside()
    name = cluster.name
    count_call = lambda verb, status: counters.add(metric_names.API_REQUESTS, name, verb, str(status))  # noqa: E731
    return Api(configuration, agent="hetsched-discovery", count_call=count_call), Message("")


def check_identity(cluster: Cluster, api: Api) -> str:
    """Return the uid of the connected cluster, and store it on first contact.

    A cluster may be connected under a second name only in shadow mode, because all its reservations must be in one
    `Cluster`.

    Raises: InputError `AnotherCluster`, `ClusterConnectedTwice`; ApiFailure.
    """
    uid = str(msgspec.json.decode(api.get(_HOME))["metadata"]["uid"])
    acting = Connection.objects.filter(shadow_of="")
    twin = acting.filter(cluster_uid=uid).exclude(cluster=cluster).values_list("cluster__name", flat=True).first()
    if twin is not None and acting.filter(cluster=cluster).exists():
        raise InputError(
            "ClusterConnectedTwice",
            Message(
                "the API server of {cluster} is already connected as cluster {other}", cluster=cluster.name, other=twin
            ),
            hint=Message("Use {other}, or disconnect one of the two", other=twin),
        )
    Connection.objects.filter(cluster=cluster, cluster_uid="").update(cluster_uid=uid)
    known = Connection.objects.values_list("cluster_uid", flat=True).get(cluster=cluster)
    if known != uid:
        raise InputError(
            "AnotherCluster",
            Message(
                "the API server of {cluster} belongs to a different cluster than before (uid of the namespace "
                "kube-system: {uid}, previously {known})",
                cluster=cluster.name,
                uid=uid,
                known=known,
            ),
            hint="Connect the previous cluster, or add this cluster under a new name",
        )
    return uid


def _not_connected(cluster: Cluster) -> InputError:
    return InputError("ClusterNotConnected", Message("cluster {cluster} has no connection", cluster=cluster.name))


def _decrypt_kubeconfig(connection: Connection, cluster: Cluster) -> str | None:
    """Return the stored kubeconfig. It is empty if none is stored, and None if it cannot be decrypted."""
    try:
        return connection.sealed_kubeconfig and unseal(connection.sealed_kubeconfig, purpose=purpose_of(cluster))
    except InputError:
        return None


def _decrypt_discovery_kubeconfig(connection: Connection, cluster: Cluster) -> str | None:
    """Return the stored kubeconfig for discovery, with the same special cases as `_decrypt_kubeconfig`."""
    try:
        sealed = connection.sealed_discovery_kubeconfig
        return sealed and unseal(sealed, purpose=purpose_of(cluster, "discovery"))
    except InputError:
        return None


def purpose_of(cluster: Cluster, whose: str = "connection") -> str:
    """Return the purpose with which a kubeconfig of a cluster is sealed: `connection` or `discovery`."""
    return f"{whose if whose == 'discovery' else ''} kubeconfig of {cluster.name}".strip()


def _read_context(kubeconfig: Any, context: str) -> tuple[str, str]:
    """Return one context of a kubeconfig, as text, and its server address; return two empty strings for None."""
    if kubeconfig is None:
        return "", ""
    from hetsched.adapters.kubernetes.connections.kubeconfig import Access, one_context, read

    document = read(kubeconfig.encode()) if isinstance(kubeconfig, str) else kubeconfig
    kept = one_context(document, context=context, programs=allowed_programs())
    access = Access(kept)
    if len(access.server) > 300:
        message = Message("the value is longer than {n} characters", n=300)
        raise InputError("KubeconfigMalformed", message, place="clusters.cluster.server")
    check_server(access.server)
    return encode(kept).decode(), access.server


def _programs_of(**kubeconfigs: str | None) -> dict[str, Any]:
    """Return the programs of new kubeconfigs by purpose, for the audit trail."""
    users = {key: msgspec.json.decode(text)["users"][0]["user"] for key, text in kubeconfigs.items() if text}
    found = {key: user["exec"]["command"] for key, user in users.items() if "exec" in user}
    return {"programs": found} if found else {}


def allowed_programs() -> ExecPolicy:
    """Return the programs that this installation allows for the credentials of connections."""
    from hetsched.adapters.exec_credentials.allowed_programs import ExecPolicy

    return ExecPolicy(tuple(settings.HETSCHED_EXEC_CREDENTIALS), tuple(settings.HETSCHED_EXEC_ENVIRONMENT))


def check_server(server: str) -> None:
    """Reject a server that HETSCHED_CLUSTER_HOSTS does not allow. Raises: InputError `ClusterHostNotAllowed`."""
    from hetsched.adapters.kubernetes.connections.kubeconfig import host_of

    host = host_of(server)
    allowed = settings.HETSCHED_CLUSTER_HOSTS
    if allowed and {host, host.rpartition(":")[0]}.isdisjoint(allowed):
        raise InputError(
            "ClusterHostNotAllowed",
            Message("this server is not allowed to connect to {host}", host=host),
            place="clusters.cluster.server",
            hint="Add the API server to HETSCHED_CLUSTER_HOSTS of the server",
        )


def _check_namespaces(namespaces: Sequence[str]) -> list[str]:
    if len(namespaces) > MOST_NAMESPACES:
        raise InputError(
            "NamespaceInvalid", Message("there are more than {n} namespaces", n=MOST_NAMESPACES), place="namespaces"
        )
    for name in namespaces:
        if not re.fullmatch(DNS_LABEL.regex, name):
            raise InputError(
                "NamespaceInvalid",
                Message("{text} is not a valid namespace", text=repr(name[:80])),
                place="namespaces",
                hint=str(DNS_LABEL.message),
            )
    return sorted(set(namespaces))
