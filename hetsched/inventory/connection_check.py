"""Diagnose the connection to a live cluster: API server, access rights, and the sync state of every resource.

Every check yields one line; checks that require a failed step are omitted. A cluster without an API server is checked
only for its collectors.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from django.utils import timezone

from hetsched.contracts.errors import InputError

from .connections import api_of, check_identity, where
from .models import Cluster, ClusterKind, Connection, Sync
from .node_events import STALE


class Check(msgspec.Struct, frozen=True):
    """The result of one check."""

    check: str
    ok: bool
    detail: str


def check_cluster(cluster: Cluster) -> list[Check]:
    """Return the checks of a live cluster; for other clusters those of the collectors alone."""
    if cluster.kind != ClusterKind.KUBERNETES:
        return _collectors(cluster)
    from hetsched.adapters.kubernetes.api import ApiFailure

    found: list[Check] = []
    try:
        found.extend(_server(cluster))
        found.extend(_rights(cluster))
    except InputError as error:
        found.append(Check("connection", False, f"{error.message} [{error.code}]"))
    except ApiFailure as failure:
        found.append(Check("API server", False, str(failure)))
    return [*found, *_sources(cluster), *_collectors(cluster), *_discovered(cluster)]


def _server(cluster: Cluster) -> Iterator[Check]:
    api = api_of(cluster)
    version = msgspec.json.decode(api.get("/version")).get("gitVersion", "")
    yield Check("API server", True, f"{where(cluster.connection)} {version}")
    yield Check("identity", True, f"kube-system {check_identity(cluster, api)}")


def _rights(cluster: Cluster) -> Iterator[Check]:
    from hetsched.adapters.kubernetes.access_review import PULL_RIGHTS, RIGHTS, ask

    namespaces = cluster.connection.enrolled_namespaces
    granted = 0
    shadow = cluster.connection.shadow_of
    rights = [right for right in RIGHTS if not shadow or right.purpose in ("follow", "identify")]
    rights += PULL_RIGHTS if cluster.connection.read_pull_secrets else ()
    for answer in ask(api_of(cluster), namespaces=namespaces, rights=rights):
        if answer.granted:
            granted += 1
            continue
        inside = f" in namespace {answer.namespace}" if answer.namespace else ""
        why = f": {answer.reason}" if answer.reason else ""
        yield Check(f"right to {answer.right}", False, f"needed to {answer.right.purpose}{inside}{why}"[:500])
    yield Check("rights", granted > 0, f"{granted} granted, {len(namespaces)} namespaces enrolled")


def _collectors(cluster: Cluster) -> list[Check]:
    """Query every external source and return the number of nodes that it reports."""
    from hetsched.adapters.collectors.registry import build
    from hetsched.adapters.collectors.requests import SourceError

    from .collection import aliases, asker

    found = []
    for row in cluster.collectors.filter(enabled=True):
        try:
            collector = build(row.kind, row.params)
            collected = collector.collect(asker(row), aliases(cluster.pk), timezone.now().timestamp())
        except (SourceError, InputError) as failed:
            found.append(Check(f"source {row.name}", False, f"{failed.message} [{failed.code}]"[:500]))
            continue
        detail = f"{row.kind}: {len(collected.findings)} of {cluster.node_count} nodes"
        more = f"; {collected.problems[0]}" if collected.problems else ""
        found.append(
            Check(f"source {row.name}", bool(collected.findings) and not collected.problems, f"{detail}{more}"[:500])
        )
    return found


def _sources(cluster: Cluster) -> Iterator[Check]:
    """Return the sync state of every resource in the current informer."""
    connection = Connection.objects.filter(cluster=cluster).first()
    if connection is None:
        return
    if connection.failure:
        yield Check("follower", False, connection.failure)
    syncs = Sync.objects.filter(cluster=cluster, epoch=connection.follower_epoch).order_by("resource")
    now = timezone.now()
    for sync in syncs:
        if sync.alive_at is None:
            ok, detail = not sync.required, sync.reason or "the kind was never listed"
            if ok and detail.startswith("404 "):
                detail = "the cluster does not serve this optional kind"
        else:
            age = now - sync.alive_at
            ok = sync.synced_at is not None and age < STALE
            detail = f"{sync.objects_count} objects, last event {age.total_seconds():.0f} s ago"
            detail += f", {len(sync.quarantined)} unreadable" if sync.quarantined else ""
            detail += f"; {sync.reason}" if sync.failures else ""
        yield Check(f"watch {sync.resource}", ok, detail)
    if not syncs and not connection.failure:
        yield Check("follower", False, "the kind is not watched yet; start `hetsched scheduler`")


def _discovered(cluster: Cluster) -> Iterator[Check]:
    """Return the result of the last discovery run, which checks its own access rights."""
    connection = Connection.objects.filter(cluster=cluster).first()
    if connection is None:
        return
    found = connection.discovery
    if found is None:
        yield Check("discovery", True, "discovery has not run for this cluster; start a worker of the queue `discover`")
        return
    for right in found.missing:
        yield Check(f"discovery's right to {right}", False, "needed to publish node facts in the cluster")
    detail = f"{found.nodes} nodes, {found.reported} with an agent, {found.silent_count} of them silent, at {found.at}"
    if found.writes:
        detail += (
            f"; {found.written} of {found.differing} differences written, {found.kept_count} owned by other managers"
        )
    else:
        detail += f"; {found.differing} differences, not written: {found.reason}"
    yield Check("discovery", not found.failures, "; ".join((detail, *found.failures[:3]))[:500])
