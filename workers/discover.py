"""Publish node facts (labels, zones, GPUs, network and disk) in live clusters, and mark nodes with silent agents.

Other controllers, and a restored or second installation of hetsched, see only the facts stored in the cluster.
At intervals the worker reads each live cluster with the discovery account, compares the stored objects with the
accepted agent reports, and applies the differences (`hetsched.adapters.kubernetes.node_discovery`). Only one worker at
a time does this for a cluster, and only if this installation holds the cluster's Lease. If the account is missing or
lacks a permission, or if the cluster does not reject writes to objects of other owners, the worker only reports the
differences and writes nothing. Invariants: quarantined parts of a node are not changed; a node with a silent agent is
marked but keeps its reported facts; nothing is ever deleted.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
import structlog
from celery import shared_task
from django.utils import timezone

from hetsched.adapters.kubernetes.api import Api, ApiFailure, Resource
from hetsched.adapters.kubernetes.connections.access_review import DISCOVERY_RIGHTS, ask
from hetsched.adapters.kubernetes.leader_lease import holder_of_lease
from hetsched.adapters.kubernetes.node_discovery import (
    AcceptedNodeFacts,
    PublishedNode,
    ServedKinds,
    Write,
    is_guarded,
    perform,
    plan,
)
from hetsched.adapters.kubernetes.resources import NODE_GPUS, NODES, TOPOLOGIES
from hetsched.adapters.node_facts.agent_reports import node_facts
from hetsched.contracts.api.discovery import MOST_LISTED, Discovery, FieldConflict, SilentNode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, shortened, verbatim
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.times import rfc3339
from hetsched.inventory.agent_messages import silent_since
from hetsched.inventory.connections import check_identity, discovery_api
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.inventory.models.node_facts import NodeFacts
from hetsched.scheduling.leases import Lease, discovering

_MOST_FAILURES = 10
_MOST_WRITES = 5000  # maximum per run; the next run makes the remaining writes
# Minimum time between comparisons of a read-only cluster, because listing all nodes is expensive.
_READ_ONLY = timedelta(minutes=10)
# Name of a fact that may be quarantined -> the field of a report that is then removed.
_PARTS = {"gpu": "gpus", "numa": "numa"}
log = structlog.get_logger(__name__)


class _Amounts(msgspec.Struct):
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}


class _Node(msgspec.Struct):
    """The fields of a Node that are compared. Images and conditions, most of the size of a Node, are not decoded."""

    metadata: dict[str, Any]
    status: _Amounts = msgspec.field(default_factory=_Amounts)


_node = msgspec.json.Decoder(_Node)


@shared_task(name="workers.discover.run")
def run() -> int:
    """Compare every live cluster with its reports; return the number of writes."""
    written = 0
    live = Cluster.objects.filter(kind=ClusterKind.KUBERNETES, connection__isnull=False).select_related("connection")
    for cluster in live.defer("definitions"):
        if _is_waiting(cluster.connection):
            continue
        lease = discovering.take(cluster.pk, f"{socket.gethostname()}:{os.getpid()}")
        if lease is None:
            continue
        try:
            found = compare(cluster, lease)
        except Exception:  # a failing cluster must not block the others
            log.exception("discovery failed", cluster=cluster.name)
            failure = Message("internal server error; see the log of the server")
            found = Discovery(reason=Message("discovery failed"), failures=(failure,))
        finally:
            discovering.release(lease)
        written += found.written
        found = msgspec.structs.replace(found, at=rfc3339(timezone.now()))
        Connection.objects.filter(cluster=cluster).update(discovery=found)
        log.info(
            "discovery", cluster=cluster.name, nodes=found.nodes, differing=found.differing, written=found.written,
            kept=found.kept_count, silent=found.silent_count, reason=found.reason or None,
        )  # fmt: skip
    return written


def compare(cluster: Cluster, lease: Lease) -> Discovery:
    """Compare a cluster with the accepted reports, and write the differences where permitted."""
    missing: tuple[str, ...] = ()
    nodes = 0
    writes: list[Write] = []
    conflicts: list[FieldConflict] = []
    try:
        api, reason = discovery_api(cluster)
        check_identity(cluster, api)
        if not reason:
            missing = _missing_rights(api)
            reason = Message("missing rights: {n}", n=len(missing)) if missing else _ownership_problem(cluster, api)
        known = _known(cluster, timezone.now())
        listed, served = _read_published(api)
        for node in listed:
            nodes += 1
            wanted, remaining = plan(node, known.get((node.name, node.uid), AcceptedNodeFacts()), served)
            writes += wanted
            conflicts += remaining
    except InputError as error:
        failure = Message("{detail} [{code}]", detail=error.message, code=error.code)
        return Discovery(reason=verbatim(error.code), failures=(failure,))
    except ApiFailure as refused:
        reason = Message("the API server rejects the request")
        return Discovery(reason=reason, missing=missing, failures=(shortened(refused.text, 300),))
    silent = [SilentNode(name, one.stale_since) for (name, _), one in known.items() if one.stale_since]
    written = 0
    failures: list[Message] = []
    if writes and not reason:
        written, reason, failures = _write(api, lease, writes)
    return Discovery(
        writes=not reason,
        reason=reason,
        missing=missing,
        nodes=nodes,
        reported=len(known),
        differing=len(writes),
        written=written,
        kept_count=len(conflicts),
        kept=tuple(conflicts[:MOST_LISTED]),
        silent_count=len(silent),
        silent=tuple(silent[:MOST_LISTED]),
        failures=tuple(failures[:_MOST_FAILURES]),
    )


def _is_waiting(connection: Connection) -> bool:
    """Return whether the next comparison has to wait: the cluster is read-only, and the last one is too recent."""
    before = connection.discovery
    if before is None or before.writes or not (connection.shadow_of or connection.sealed_kubeconfig):
        return False
    if connection.sealed_discovery_kubeconfig and not connection.shadow_of:
        return False
    return timezone.now() - datetime.fromisoformat(before.at) < _READ_ONLY


def _missing_rights(api: Api) -> tuple[str, ...]:
    return tuple(str(answer.right) for answer in ask(api, namespaces=(), rights=DISCOVERY_RIGHTS) if not answer.granted)


def _ownership_problem(cluster: Cluster, api: Api) -> Message:
    """Return why this installation may not write to the cluster, or an empty message if it may."""
    holder = holder_of_lease(api)
    if not holder:
        return Message("no process schedules the cluster")
    if holder.startswith(f"{cluster.connection.installation}/"):
        return Message("")
    return Message("another installation schedules the cluster: {text}", text=holder)


def _read_published(api: Api) -> tuple[Iterator[PublishedNode], ServedKinds]:
    """Return the nodes of a cluster with their NodeResourceTopology and NodeGpu objects. Raises: ApiFailure."""
    topologies, gpus = _by_name(api, TOPOLOGIES), _by_name(api, NODE_GPUS)
    nodes, _ = api.list_all(NODES)

    def published() -> Iterator[PublishedNode]:
        for node in map(_node.decode, nodes):
            name, status = node.metadata["name"], msgspec.structs.asdict(node.status)
            plain = {"metadata": node.metadata, "status": status}
            yield PublishedNode(plain, (topologies or {}).get(name), (gpus or {}).get(name))

    return published(), ServedKinds(topologies is not None, gpus is not None)


def _by_name(api: Api, kind: Resource) -> dict[str, dict[str, Any]] | None:
    """Return the objects of a kind by name, or None if the cluster does not serve the kind."""
    try:
        listed, _ = api.list_all(kind)
    except ApiFailure as failure:
        if failure.status == 404:
            return None
        raise
    return {item["metadata"]["name"]: item for item in map(msgspec.json.decode, listed)}


def _known(cluster: Cluster, now: datetime) -> dict[tuple[str, str], AcceptedNodeFacts]:
    """Return the accepted node reports by name and UID, without quarantined parts."""
    late = silent_since(now)
    rows = NodeFacts.objects.filter(node__cluster=cluster, node__gone=False, reported__isnull=False)
    return {
        (row.node.name, row.node.report.uid): AcceptedNodeFacts(
            _accepted_report(row),
            rfc3339(row.reported_at) if row.reported_at is not None and row.reported_at < late else "",
            frozenset(item.item for item in row.quarantined if item.fact == "allocatable"),
        )
        for row in rows.select_related("node")
    }


def _accepted_report(row: NodeFacts) -> NodeReport:
    reported = msgspec.structs.replace(row.reported, usage=row.usage)
    facts = node_facts(reported, kubelet_version=row.node.report.kubelet_version)
    unsaid = {_PARTS[item.fact]: None for item in row.quarantined if item.fact in _PARTS}
    return msgspec.structs.replace(facts, **unsaid)


def _write(api: Api, lease: Lease, writes: list[Write]) -> tuple[int, Message, list[Message]]:
    """Apply the differences; return the number of writes, the reason if writing stopped early, and the failures."""
    try:
        if not is_guarded(api, writes[0].name):
            reason = Message("the admission policy of deploy/discovery is not active")
            return 0, reason, [Message("GuardMissing: discovery writes nothing without the admission policy")]
    except ApiFailure as failure:
        reason = Message("the admission policy of deploy/discovery could not be tested")
        return 0, reason, [shortened(failure.text, 300)]
    written = 0
    failures: list[Message] = []
    for number, write in enumerate(writes[:_MOST_WRITES]):
        if number % 50 == 0 and not discovering.renew(lease):
            return written, Message("another worker is now the leader"), failures
        try:
            perform(api, write)
            written += 1
        except ApiFailure as failure:
            if failure.status == 404:
                continue  # the node was deleted in the meantime
            message = Message("{name}: {detail}", name=f"{write.name}: {write.what}", detail=failure.text)
            failures.append(shortened(message, 300))
            if failure.status == 0:
                return written, Message("the API server does not respond"), failures
    return written, Message(""), failures
