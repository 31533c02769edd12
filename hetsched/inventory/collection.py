"""Configure collectors and store their results as node facts; the only module that writes `Collector` rows.

If a source stops reporting, its facts must not influence decisions, and users must see that it has stopped. The task
that claims a due collector queries it outside any transaction. The results are written under the cluster's lock. A fact
is stale once its observation is older than the collector allows, once the collector has failed as often in a row as
configured (for usage sources: after one failure), or when a usage source no longer reports a node. A stale usage sample
stays in the report with its mark, so that the scheduler uses resource requests instead; other stale facts are ignored.
Collectors call only hosts in `HETSCHED_SOURCE_HOSTS`. Tokens never appear in audit entries, errors or log records.
Invariant: a run writes nothing if its collector was changed after the run started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.utils import timezone

from hetsched.adapters.collectors import registry
from hetsched.adapters.collectors.requests import CollectorClient
from hetsched.adapters.http.outbound import AllowedHosts, OutboundError, check
from hetsched.adapters.node_facts.agent_reports import usage_facts
from hetsched.adapters.node_facts.collected_facts import fact_texts, usage_of
from hetsched.adapters.node_facts.report_merge import newer
from hetsched.contracts.documents import to_plain
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, shortened
from hetsched.contracts.objects.collected import Collected, CollectedFact, CollectedNode, NodeAlias
from hetsched.contracts.objects.facts import record_claim
from hetsched.contracts.objects.node_report import Usage
from hetsched.contracts.times import rfc3339, seconds
from hetsched.contracts.waits import Event
from hetsched.journal.audit import Actor, record
from hetsched.journal.publish import publish_many
from hetsched.storage.sealed_secrets import seal, unseal
from hetsched.storage.write_lock import write_transaction

from .actions import check_name, cluster_topic, node_topic, require_reason
from .facts import new_facts, write_facts
from .freshness import SAMPLE_COLUMNS, mark_expired, set_usage
from .models import Cluster, Node
from .models.collectors import Collector
from .models.node_facts import NodeFacts
from .node_loads import advance, write_columns
from .signals import inventory_changed
from .tiles import cluster_head

MOST_COLLECTORS = 32
_MOST_PROBLEMS = 20


# -- configuration -----------------------------------------------------------------------------------------------------


def allowed_hosts() -> AllowedHosts:
    """Return the hosts that collectors may call."""
    hosts = frozenset(settings.HETSCHED_SOURCE_HOSTS) - {"*"}
    return AllowedHosts(hosts, hosts)


def configure(
    cluster: Cluster,
    name: str,
    *,
    kind: str,
    params: dict[str, Any],
    enabled: bool = True,
    interval_seconds: int = 30,
    most_failures: int | None = None,
    most_age_seconds: int = 120,
    token: str | None = None,
    actor: Actor,
    reason: str,
) -> Collector:
    """Add a collector to a cluster, or change it; `token` None keeps the stored token, an empty string removes it.

    Raises: InputError `ReasonMissing`, `CollectorNameInvalid`, `CollectorUnknown`, `CollectorParamInvalid`,
    `SourceNotAllowed`, `TokenMissing`, `CollectorsTooMany` or `SecretKeyMissing`.
    """
    reason = require_reason(reason)
    check_name(name, "CollectorNameInvalid")
    made = registry.build(kind, params)
    check_hosts(made.urls())
    load = registry.load_collectors()[kind].load
    bounds = {"intervalSeconds": (interval_seconds, 1, 86_400), "mostAgeSeconds": (most_age_seconds, 1, 604_800)}
    if most_failures is not None:
        bounds["mostFailures"] = (most_failures, 1, 1000)
    for place, (value, least, most) in bounds.items():
        if not least <= value <= most:
            message = Message("{value} is not between {low} and {high}", value=value, low=least, high=most)
            raise InputError("CollectorParamInvalid", message, place=place)
    with write_transaction():
        locked = Cluster.objects.select_for_update().get(pk=cluster.pk)
        row = Collector.objects.filter(cluster=locked, name=name).first()
        if row is None:
            if Collector.objects.filter(cluster=locked).count() >= MOST_COLLECTORS:
                message = Message("a cluster has at most {n} collectors", n=MOST_COLLECTORS)
                raise InputError("CollectorsTooMany", message, place="name")
            row = Collector(cluster=locked, name=name)
        new = row._state.adding
        moved = not new and made.urls() != _urls(row)
        if token is None and moved and row.sealed_token:
            hint = "Send the token again, or send an empty token"
            raise InputError("TokenMissing", "a stored token is not sent to a different URL", place="token", hint=hint)
        row.kind, row.params, row.enabled, row.load = kind, params, enabled, load
        row.interval_seconds, row.most_age_seconds = interval_seconds, most_age_seconds
        row.most_failures = most_failures or (1 if load else 3)
        if token is not None:
            row.sealed_token = seal(token, purpose=_purpose(row)) if token else ""
        row.version = 1 if new else row.version + 1
        row.due_at = timezone.now()
        row.save()
        details = {"kind": kind, "hosts": [_host(url) for url in made.urls()], "enabled": enabled}
        record(
            actor=actor.name, role=actor.role, action="collector.add" if new else "collector.change",
            obj=("collector", f"{locked.name}/{name}"), reason=reason, details=details,
        )  # fmt: skip
    if not new:
        _merge_findings(
            row, {}, status={"stale_since": None, "nodes_reported": 0, "nodes_stale": 0, "failures": 0, "failure": ""}
        )
    return row


def remove(cluster: Cluster, name: str, *, actor: Actor, reason: str) -> None:
    """Remove a collector and all its facts. Raises: InputError `CollectorUnknown` or `ReasonMissing`."""
    reason = require_reason(reason)
    row = Collector.objects.filter(cluster=cluster, name=name).first()
    if row is None:
        message = Message("unknown collector {text}", text=repr(name[:80]))
        raise InputError("CollectorUnknown", message, place="name")
    with write_transaction():
        _merge_findings(row, {}, status={})
        row.delete()
        record(
            actor=actor.name, role=actor.role, action="collector.remove",
            obj=("collector", f"{cluster.name}/{name}"), reason=reason,
        )  # fmt: skip


def check_hosts(urls: Sequence[str]) -> None:
    """Reject URLs of hosts that are not allowed. Raises: InputError `SourceNotAllowed`."""
    for url in urls:
        try:
            check(url, allowed_hosts())
        except OutboundError as refused:
            hint = "Add the source as host:port to HETSCHED_SOURCE_HOSTS of the server"
            raise InputError("SourceNotAllowed", refused.message, place="params.url", hint=hint) from None


def _urls(row: Collector) -> tuple[str, ...]:
    try:
        return registry.build(row.kind, row.params).urls()
    except InputError:
        return ()


def _host(url: str) -> str:
    return check(url, allowed_hosts()).netloc


def _purpose(row: Collector) -> str:
    return f"collector {row.cluster_id} {row.name}"


# -- queries -----------------------------------------------------------------------------------------------------------


def due_collectors(now: datetime) -> list[int]:
    """Return the ids of the enabled collectors whose next query is due."""
    return list(Collector.objects.filter(enabled=True, due_at__lte=now).values_list("pk", flat=True))


def claim_collector(pk: int, now: datetime) -> Collector | None:
    """Claim and return a due collector; return None if another task claimed it or it is no longer due."""
    row = Collector.objects.select_related("cluster").filter(pk=pk, enabled=True, due_at__lte=now).first()
    if row is None:
        return None
    following = now + timedelta(seconds=row.interval_seconds)
    taken = Collector.objects.filter(pk=pk, due_at=row.due_at).update(due_at=following, tried_at=now)
    return row if taken else None


def http_client(row: Collector) -> CollectorClient:
    """Return the HTTP client of a collector. Raises: InputError `SecretKeyChanged`."""
    token = unseal(row.sealed_token, purpose=_purpose(row)) if row.sealed_token else ""
    return CollectorClient(allowed_hosts(), token=token, most=settings.HETSCHED_SOURCE_BYTES)


def node_aliases(cluster_id: int) -> list[NodeAlias]:
    """Return the name and addresses of each node of a cluster, to match nodes in the results of a collector."""
    nodes = Node.objects.filter(cluster_id=cluster_id, gone=False).only("name", "report")
    return [NodeAlias(node.name, node.report.addresses) for node in nodes]


# -- results -----------------------------------------------------------------------------------------------------------


def store_findings(row: Collector, collected: Collected, *, now: datetime) -> None:
    """Store a collector's findings as node facts; findings that are too old are marked as stale."""
    found = {finding.node: finding for finding in collected.findings}
    late = {node for node, finding in found.items() if _is_old(finding, row, now)}
    status = {
        "answered_at": now,
        "failures": 0,
        "failure_code": "",
        "failure": "",
        "stale_since": None,
        "problems": [problem[:300] for problem in collected.problems[:_MOST_PROBLEMS]],
    }
    _merge_findings(row, found, late=late, status=status)


def record_failure(row: Collector, code: str, message: str, *, now: datetime) -> None:
    """Record a failed query. After `most_failures` failures in a row, all facts of the collector become stale."""
    failures = row.failures + 1
    status: dict[str, Any] = {"failures": failures, "failure_code": code[:63], "failure": shortened(message, 500)}
    if failures < row.most_failures:
        Collector.objects.filter(pk=row.pk, version=row.version).update(**status)
        return
    status["stale_since"] = row.stale_since or now
    _merge_findings(row, None, status=status)


def _is_old(finding: CollectedNode, row: Collector, now: datetime) -> bool:
    at = seconds(finding.observed_at)
    return at is None or now.timestamp() - at > row.most_age_seconds


def _merge_findings(
    collector: Collector,
    found: Mapping[str, CollectedNode] | None,
    *,
    status: Mapping[str, Any],
    late: frozenset[str] | set[str] = frozenset(),
) -> None:
    """Replace a collector's facts by `found`, or mark them as stale if `found` is None because the query failed."""
    with write_transaction():
        cluster = advance(collector.cluster_id)
        live = Collector.objects.filter(pk=collector.pk, version=collector.version)
        if not live.exists():
            return
        facts = NodeFacts.objects.filter(node__cluster=cluster)
        rows = {row.node_id: row for row in (facts.only("base", "usage", "collected") if collector.load else facts)}
        asked = bool(status.get("answered_at")) or found is None
        reported = stale = 0
        changes = []
        for node in Node.objects.filter(cluster=cluster, gone=False).order_by("pk"):
            node.cluster = cluster
            row = rows.get(node.pk)
            before = row.collected if row is not None else ()
            old = next((fact for fact in before if fact.collector == collector.name), None)
            new = _fact(collector, old, found, late, node.name) if asked else None
            reported += new is not None and new.finding is not None
            stale += new is not None and new.stale
            if new != old:
                kept = [fact for fact in before if fact.collector != collector.name]
                after = (*kept, new) if new is not None else tuple(kept)
                changes.append((node, row or new_facts(node), old, new, after))
        _write(cluster, collector, changes)
        live.update(**{**status, "nodes_reported": reported, "nodes_stale": stale})


Change = tuple[Node, NodeFacts, CollectedFact | None, CollectedFact | None, tuple[CollectedFact, ...]]


def _fact(
    collector: Collector,
    old: CollectedFact | None,
    found: Mapping[str, CollectedNode] | None,
    late: frozenset[str] | set[str],
    node: str,
) -> CollectedFact | None:
    finding = None if found is None else found.get(node)
    if finding is not None:
        return CollectedFact(collector.name, collector.load, finding, node in late)
    if collector.load:  # a usage source measures every node, so the sample of a missing node is stale
        return CollectedFact(collector.name, True, old.finding if old else None, stale=True)
    if found is None and old is not None:
        return CollectedFact(collector.name, False, old.finding, stale=True)
    return None


def _write(cluster: Cluster, collector: Collector, changes: list[Change]) -> None:
    """Write node facts: samples and confirmed facts in bulk, changed facts through `write_facts`."""
    now = timezone.now()
    sampled: list[Node] = []
    patches: dict[str, dict[str, Any]] = {}
    added: list[NodeFacts] = []
    kept: list[NodeFacts] = []
    for node, row, old, new, after in changes:
        row.collected = after
        if not collector.load:
            _record_statements(row, collector, old, new, now)
            if _is_confirmed(old, new):
                kept.append(row)
            else:
                write_facts(cluster, node, row, now, columns=["collected"])
            continue
        (added if row._state.adding else kept).append(row)
        others = newer(mark_expired(row.base.usage, now), mark_expired(usage_facts(row.usage, []), now))
        usage = usage_of(others, after)
        if usage != node.report.usage:
            if usage is not None and not usage.stale:
                node.sampled_revision = cluster.revision
            patches[node_topic(cluster, node.name)] = {"report": {"usage": _difference(node.report.usage, usage)}}
            set_usage(node, usage, now)
            node.changed_revision = cluster.revision
            sampled.append(node)
    NodeFacts.objects.bulk_create(added, batch_size=200)
    write_columns(kept, ("collected",) if collector.load else ("collected", "claims"))
    write_columns(sampled, SAMPLE_COLUMNS)
    if sampled:
        cluster.inventory_revision = cluster.revision
        cluster.save(update_fields=["inventory_revision"])
        inventory_changed.send(sender=Cluster, cluster=cluster, events=frozenset({Event.NODE_USE}))
        publish_many({cluster_topic(cluster): cluster_head(cluster), **patches})


def _is_confirmed(old: CollectedFact | None, new: CollectedFact | None) -> bool:
    """Return whether two facts differ only in their observation time, so that the node's report does not change."""
    if old is None or new is None or old.finding is None or new.finding is None:
        return False
    finding = msgspec.structs.replace(new.finding, observed_at=old.finding.observed_at)
    return msgspec.structs.replace(new, finding=finding) == old


def _difference(before: Usage | None, after: Usage | None) -> dict[str, Any] | None:
    """Return the merge patch that turns the first sample into the second, with null for removed resources."""
    if after is None:
        return None
    gone = dict.fromkeys(before.amounts.keys() - after.amounts.keys()) if before is not None else {}
    document: dict[str, Any] = to_plain(after)
    return {**document, "amounts": {**document["amounts"], **gone}}


def _record_statements(
    row: NodeFacts, collector: Collector, old: CollectedFact | None, new: CollectedFact | None, now: datetime
) -> None:
    """Record a collector's values in `row.claims`; values that it no longer reports are kept as history."""
    words = fact_texts(new) if new is not None else {}
    before = fact_texts(old) if old is not None else {}
    if words or before:
        source = f"collector {collector.name}"
        claimed = {fact for fact, said in row.claims.items() if any(item.source == source for item in said)}
        mine = {fact: row.claims[fact] for fact in claimed}
        row.claims = {**row.claims, **record_claim(mine, source, words, rfc3339(now))}
