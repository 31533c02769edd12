"""Diagnose the connection to a live cluster: API server, access rights, and the sync state of every resource.

Every check yields one line; checks that depend on a failed check are omitted. For a cluster without an API server, only
its collectors are checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from django.utils import timezone

from hetsched.contracts.errors import InputError, with_hint
from hetsched.contracts.message import Message, as_message, joined, shortened, verbatim

from .connections import api_of, check_identity, server_address
from .models import Cluster, ClusterKind, Connection, Sync
from .node_events import STALE

# The minor versions of Kubernetes 1 that `make matrix` tests.
TESTED_MINORS = range(34, 38)


class Check(msgspec.Struct, frozen=True):
    check: str
    ok: bool
    detail: Message


def check_cluster(cluster: Cluster) -> list[Check]:
    """Run all checks of a live cluster; for other clusters, run only the checks of the collectors."""
    if cluster.kind != ClusterKind.KUBERNETES:
        return _collectors(cluster)
    from hetsched.adapters.kubernetes.api import ApiFailure

    found: list[Check] = []
    try:
        found.extend(_server(cluster))
        found.extend(_rights(cluster))
        found.extend(_tokens(cluster))
    except InputError as error:
        found.append(Check("connection", False, _describe_error(error)))
    except ApiFailure as failure:
        found.append(Check("API server", False, failure.text))
    return [*found, *_sources(cluster), *_collectors(cluster), *_discovered(cluster)]


def _server(cluster: Cluster) -> Iterator[Check]:
    api = api_of(cluster)
    version = str(msgspec.json.decode(api.get("/version")).get("gitVersion", ""))
    yield Check("API server", True, verbatim(f"{server_address(cluster.connection)} {version}"))
    yield Check("identity", True, verbatim(f"kube-system {check_identity(cluster, api)}"))
    yield from check_version(version)


def check_version(version: str) -> Iterator[Check]:
    """Yield a check with a warning if a version of Kubernetes, such as `v1.37.2+k3s1`, is known and not tested."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})(?!\d)", version)
    if found is None or (found[1] == "1" and int(found[2]) in TESTED_MINORS):
        return
    first, last = (f"1.{minor}" for minor in (TESTED_MINORS[0], TESTED_MINORS[-1]))
    detail = Message(
        "hetsched is not tested with Kubernetes {version}: use a version from {first} to {last}",
        version=f"{found[1]}.{found[2]}", first=first, last=last,
    )  # fmt: skip
    yield Check("Kubernetes version", True, detail)


def _rights(cluster: Cluster) -> Iterator[Check]:
    from hetsched.adapters.kubernetes.connections.access_review import PULL_RIGHTS, RIGHTS, ask

    namespaces = cluster.connection.enrolled_namespaces
    granted = 0
    shadow = cluster.connection.shadow_of
    rights = [right for right in RIGHTS if not shadow or right.purpose in ("follow", "identify")]
    rights += PULL_RIGHTS if cluster.connection.read_pull_secrets else ()
    for answer in ask(api_of(cluster), namespaces=namespaces, rights=rights):
        if answer.granted:
            granted += 1
            continue
        detail = Message("required to {purpose}", purpose=answer.right.purpose)
        if answer.namespace:
            detail = Message("{detail} in namespace {namespace}", detail=detail, namespace=answer.namespace)
        if answer.reason:
            detail = Message("{detail}: {text}", detail=detail, text=answer.reason)
        yield Check(f"right to {answer.right}", False, shortened(detail, 500))
    detail = Message("{n} rights granted, {m} namespaces enrolled", n=granted, m=len(namespaces))
    yield Check("rights", granted > 0, detail)


def _tokens(cluster: Cluster) -> Iterator[Check]:
    """Yield one check per stored service account token that has an end: whether it is renewed."""
    for token in cluster.connection.stored_tokens:
        template = "service account {account}, ends at {time}"
        if token.failure:
            template = "service account {account}, ends at {time} and was not renewed: {detail}"
        detail = Message(template, account=token.account, time=token.expires_at, detail=token.failure)
        yield Check(f"token of {token.purpose}", not token.failure, shortened(detail, 500))


def _collectors(cluster: Cluster) -> list[Check]:
    """Query every enabled collector and return one check per collector, with the number of nodes that it reports."""
    from hetsched.adapters.collectors.registry import build
    from hetsched.adapters.collectors.requests import SourceError

    from .collection import http_client, node_aliases

    found = []
    for row in cluster.collectors.filter(enabled=True):
        try:
            collector = build(row.kind, row.params)
            collected = collector.collect(http_client(row), node_aliases(cluster.pk), timezone.now().timestamp())
        except (SourceError, InputError) as failed:
            found.append(Check(f"source {row.name}", False, shortened(_describe_error(failed), 500)))
            continue
        detail = Message(
            "{name}: facts for {n} of {m} nodes", name=row.kind, n=len(collected.findings), m=cluster.node_count
        )
        detail = joined("; ", [detail, *map(verbatim, collected.problems[:1])])
        ok = bool(collected.findings) and not collected.problems
        found.append(Check(f"source {row.name}", ok, shortened(detail, 500)))
    return found


def _sources(cluster: Cluster) -> Iterator[Check]:
    """Yield one check per resource type: whether the current informer has synced it."""
    connection = Connection.objects.filter(cluster=cluster).first()
    if connection is None:
        return
    if connection.failure:
        yield Check("follower", False, as_message(connection.failure))
    syncs = Sync.objects.filter(cluster=cluster, epoch=connection.follower_epoch).order_by("resource")
    now = timezone.now()
    for sync in syncs:
        if sync.alive_at is None:
            never = Message("objects of this kind have never been listed")
            ok, detail = not sync.required, as_message(sync.reason or never)
            if ok and detail.startswith("404 "):
                detail = Message("the cluster does not serve this optional kind")
        else:
            age = now - sync.alive_at
            ok = sync.synced_at is not None and age < STALE
            template = "{n} objects, last event {seconds} s ago"
            if sync.quarantined:
                template = "{n} objects, last event {seconds} s ago, {m} unreadable"
            seconds = f"{age.total_seconds():.0f}"
            detail = Message(template, n=sync.objects_count, seconds=seconds, m=len(sync.quarantined))
            if sync.failures:
                detail = joined("; ", [detail, as_message(sync.reason)])
        yield Check(f"watch {sync.resource}", ok, detail)
    if not syncs and not connection.failure:
        detail = Message("no objects are watched yet; start `hetsched scheduler`")
        yield Check("follower", False, detail)


def _discovered(cluster: Cluster) -> Iterator[Check]:
    """Yield checks from the stored result of the last discovery run; each missing access right is a failed check."""
    connection = Connection.objects.filter(cluster=cluster).first()
    if connection is None:
        return
    found = connection.discovery
    if found is None:
        detail = Message("discovery has not run for this cluster; start a worker for the queue `discover`")
        yield Check("discovery", True, detail)
        return
    for right in found.missing:
        detail = Message("required to publish node facts in the cluster")
        yield Check(f"discovery's right to {right}", False, detail)
    seen = Message(
        "{n} nodes, {m} with an agent, {k} agents without a recent report, at {time}",
        n=found.nodes, m=found.reported, k=found.silent_count, time=found.at,
    )  # fmt: skip
    differences = Message("{n} differences, but nothing was written: {detail}", n=found.differing, detail=found.reason)
    if found.writes:
        differences = Message(
            "{n} of {m} differences written, {k} owned by other field managers",
            n=found.written, m=found.differing, k=found.kept_count,
        )  # fmt: skip
    detail = joined("; ", [seen, differences, *found.failures[:3]])
    yield Check("discovery", not found.failures, shortened(detail, 500))


def _describe_error(error: Any) -> Message:
    """Return message, code and remedy of an error."""
    described = Message("{detail} [{code}]", detail=error.message, code=error.code)
    return with_hint(described, getattr(error, "hint", ""))
