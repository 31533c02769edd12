"""Say in live clusters what their nodes are: labels, zones, cards, network and disk; and which agents are silent.

Problem: whoever else works on a cluster sees only what stands in it, and a restored or second installation too.
Rule: every so often the worker looks at each live cluster as the account of discovery, compares what stands there with
what agents said and was believed, and applies what differs (`adapters.kubernetes.node_discovery`). One worker at a time
per cluster, and only where this installation holds the cluster's Lease. It writes nothing where the account is missing
or lacks a right, nor where the cluster does not refuse it what is not its own; then it only says what differs.
Invariants: parts of a node that are in quarantine are left as they stand; a node whose agent is silent keeps what was
said of it and is marked; nothing is ever deleted.
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

from hetsched.adapters.kubernetes.access_review import DISCOVERY_RIGHTS, ask
from hetsched.adapters.kubernetes.api import Api, ApiFailure, Resource
from hetsched.adapters.kubernetes.leader_lease import holder_of_lease
from hetsched.adapters.kubernetes.node_discovery import Known, Served, Standing, Write, is_guarded, perform, plan
from hetsched.adapters.kubernetes.resources import NODE_GPUS, NODES, TOPOLOGIES
from hetsched.adapters.node_facts.agent_reports import node_facts
from hetsched.contracts.discovery import MOST_TOLD, Discovery, Kept, Silent
from hetsched.contracts.errors import InputError
from hetsched.contracts.node_report import NodeReport
from hetsched.contracts.times import rfc3339
from hetsched.inventory.agent_messages import silent_since
from hetsched.inventory.connections import check_identity, discovery_api
from hetsched.inventory.lease import Lease, discovering
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.inventory.node_facts import NodeFacts

_MOST_FAILURES = 10
_MOST_WRITES = 5000  # at once; the next run goes on
# Where nothing may be written whatever happens, it is not worth listing all nodes again and again.
_LOOK_ONLY = timedelta(minutes=10)
# Facts that may be in quarantine, and the part of a report that they are about.
_PARTS = {"gpu": "gpus", "numa": "numa"}
log = structlog.get_logger(__name__)


class _Amounts(msgspec.Struct):
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}


class _Node(msgspec.Struct):
    """What matters of a Node; images and conditions are most of it."""

    metadata: dict[str, Any]
    status: _Amounts = msgspec.field(default_factory=_Amounts)


_node = msgspec.json.Decoder(_Node)


@shared_task(name="workers.discover.run")
def run() -> int:
    """Look at every live cluster; return how many things were written."""
    written = 0
    live = Cluster.objects.filter(kind=ClusterKind.KUBERNETES, connection__isnull=False).select_related("connection")
    for cluster in live.defer("definitions"):
        if _is_waiting(cluster.connection):
            continue
        lease = discovering.take(cluster.pk, f"{socket.gethostname()}:{os.getpid()}")
        if lease is None:
            continue
        try:
            found = look(cluster, lease)
        except Exception:  # one odd cluster keeps no other
            log.exception("discovery failed", cluster=cluster.name)
            found = Discovery(reason="it failed", failures=("an error of this server; its log says more",))
        finally:
            discovering.give_up(lease)
        written += found.written
        found = msgspec.structs.replace(found, at=rfc3339(timezone.now()))
        Connection.objects.filter(cluster=cluster).update(discovery=found)
        log.info(
            "discovery", cluster=cluster.name, nodes=found.nodes, differing=found.differing, written=found.written,
            kept=found.kept_count, silent=found.silent_count, reason=found.reason or None,
        )  # fmt: skip
    return written


def look(cluster: Cluster, lease: Lease) -> Discovery:
    """Compare a cluster with what is known of it, and write what differs where that may be."""
    missing: tuple[str, ...] = ()
    nodes = 0
    writes: list[Write] = []
    kept: list[Kept] = []
    try:
        api, reason = discovery_api(cluster)
        check_identity(cluster, api)
        if not reason:
            missing = _missing(api)
            reason = f"{len(missing)} rights are missing" if missing else _not_ours(cluster, api)
        known = _known(cluster, timezone.now())
        listed, served = _standing(api)
        for one in listed:
            nodes += 1
            wanted, left = plan(one, known.get((one.name, one.uid), Known()), served)
            writes += wanted
            kept += left
    except InputError as error:
        return Discovery(reason=error.code, failures=(f"{error.message} [{error.code}]",))
    except ApiFailure as failure:
        return Discovery(reason="the API server refuses", missing=missing, failures=(str(failure)[:300],))
    silent = [Silent(name, one.stale_since) for (name, _), one in known.items() if one.stale_since]
    written = 0
    failures: list[str] = []
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
        kept_count=len(kept),
        kept=tuple(kept[:MOST_TOLD]),
        silent_count=len(silent),
        silent=tuple(silent[:MOST_TOLD]),
        failures=tuple(failures[:_MOST_FAILURES]),
    )


def _is_waiting(connection: Connection) -> bool:
    """Tell whether a cluster that may only be looked at was looked at a while ago only."""
    before = connection.discovery
    if before is None or before.writes or not (connection.shadow_of or connection.sealed_kubeconfig):
        return False
    if connection.sealed_discovery_kubeconfig and not connection.shadow_of:
        return False
    return timezone.now() - datetime.fromisoformat(before.at) < _LOOK_ONLY


def _missing(api: Api) -> tuple[str, ...]:
    return tuple(str(answer.right) for answer in ask(api, namespaces=(), rights=DISCOVERY_RIGHTS) if not answer.granted)


def _not_ours(cluster: Cluster, api: Api) -> str:
    """Say why a cluster is not ours to write to, empty if it is."""
    holder = holder_of_lease(api)
    if not holder:
        return "nobody schedules the cluster"
    ours = holder.startswith(f"{cluster.connection.installation}/")
    return "" if ours else f"another installation schedules the cluster: {holder}"


def _standing(api: Api) -> tuple[Iterator[Standing], Served]:
    """Return the nodes as they stand, with the objects of their names. Raises: ApiFailure."""
    topologies, gpus = _by_name(api, TOPOLOGIES), _by_name(api, NODE_GPUS)
    nodes, _ = api.list_all(NODES)

    def standing() -> Iterator[Standing]:
        for node in map(_node.decode, nodes):
            name, status = node.metadata["name"], msgspec.structs.asdict(node.status)
            plain = {"metadata": node.metadata, "status": status}
            yield Standing(plain, (topologies or {}).get(name), (gpus or {}).get(name))

    return standing(), Served(topologies is not None, gpus is not None)


def _by_name(api: Api, kind: Resource) -> dict[str, dict[str, Any]] | None:
    """Return the objects of a kind by name, None where the cluster does not have it."""
    try:
        listed, _ = api.list_all(kind)
    except ApiFailure as failure:
        if failure.status == 404:
            return None
        raise
    return {one["metadata"]["name"]: one for one in map(msgspec.json.decode, listed)}


def _known(cluster: Cluster, now: datetime) -> dict[tuple[str, str], Known]:
    """Return what agents said of nodes, by name and uid, without what is in quarantine."""
    late = silent_since(now)
    rows = NodeFacts.objects.filter(node__cluster=cluster, node__gone=False, told__isnull=False)
    return {
        (row.node.name, row.node.report.uid): Known(
            _believed(row),
            rfc3339(row.heard_at) if row.heard_at is not None and row.heard_at < late else "",
            frozenset(one.item for one in row.quarantined if one.fact == "allocatable"),
        )
        for row in rows.select_related("node")
    }


def _believed(row: NodeFacts) -> NodeReport:
    facts = node_facts(msgspec.structs.replace(row.told, usage=row.usage))
    unsaid = {_PARTS[one.fact]: None for one in row.quarantined if one.fact in _PARTS}
    return msgspec.structs.replace(facts, **unsaid)


def _write(api: Api, lease: Lease, writes: list[Write]) -> tuple[int, str, list[str]]:
    """Apply what differs; return how much was, why no more was, and what failed."""
    try:
        if not is_guarded(api, writes[0].name):
            return 0, "the guard of deploy/discovery is not in force", ["GuardMissing: nothing is written without it"]
    except ApiFailure as failure:
        return 0, "the guard of deploy/discovery could not be tried", [str(failure)[:300]]
    written = 0
    failures: list[str] = []
    for number, write in enumerate(writes[:_MOST_WRITES]):
        if number % 50 == 0 and not discovering.renew(lease):
            return written, "another worker took over", failures
        try:
            perform(api, write)
            written += 1
        except ApiFailure as failure:
            if failure.status == 404:
                continue  # the node left meanwhile
            failures.append(f"{write.name}: {write.what}: {failure}"[:300])
            if failure.status == 0:
                return written, "the API server does not answer", failures
    return written, "", failures
