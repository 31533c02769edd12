"""Merge a node's facts from the cluster, its agent, collectors and operators.

Changed facts pass through `report_merge` and `acceptance` of `adapters.node_facts`. Like every change of a node, they
are written under the cluster's lock. The informer passes the API server's reports through `merge_node_reports`, so that
a report does not replace the agent's facts.
Invariant: no fact in use disappears from a node's report without an operator's approval; see `acceptance.accept`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

import msgspec
from django.conf import settings
from django.utils import timezone

from hetsched.adapters.node_facts.acceptance import AcceptedFacts, accept
from hetsched.adapters.node_facts.agent_reports import node_facts as facts_of
from hetsched.adapters.node_facts.collected_facts import with_collected
from hetsched.adapters.node_facts.fact_text import fact_texts
from hetsched.adapters.node_facts.report_merge import merge_reports
from hetsched.contracts.objects.facts import FactInQuarantine, record_claim
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.times import rfc3339
from hetsched.contracts.units import CPU, MEMORY
from hetsched.engine.framework.queueing_hints import differences
from hetsched.engine.numa.reported_zones import availability
from hetsched.journal.audit import SYSTEM, record
from hetsched.journal.publish import publish_many

from .actions import FACT_COLUMNS, cluster_topic, node_topic, set_report
from .freshness import mark_expired_report
from .models import Cluster, Node
from .models.node_facts import NodeFacts
from .node_loads import write_columns
from .overrides import apply_overrides, parts_in_maintenance
from .signals import inventory_changed
from .tiles import cluster_head, node_facts_patch, node_load, tile

AGENT = "agent"
_REVIEWED = ("known", "quarantined", "overrides", "claims")
_MOST_RECORDED = 20  # maximum number of facts in one audit entry; the node itself lists all facts
_replace = msgspec.structs.replace


def new_facts(node: Node) -> NodeFacts:
    row = NodeFacts(node=node, base=node.report, known=node.report)
    row.claims = record_claim({}, _source(node.report), fact_texts(node.report), rfc3339(node.updated_at))
    return row


def _source(report: NodeReport) -> str:
    return report.source or "file"


# -- merging -----------------------------------------------------------------------------------------------------------


def _candidate(row: NodeFacts, now: datetime) -> tuple[NodeReport, dict[str, int]]:
    """Return the merged report of all sources, and the agent's allocatable amounts other than CPU and memory."""
    if row.reported is None:
        return with_collected(mark_expired_report(row.base, now), row.collected), {}
    reported = facts_of(
        _replace(row.reported, usage=row.usage),
        observed_at=rfc3339(row.reported_at or now),
        kubelet_version=row.base.kubelet_version,
    )
    row.claims = record_claim(row.claims, AGENT, fact_texts(reported), rfc3339(row.reported_at or now))
    stated = {name: amount for name, amount in reported.allocatable.items() if name not in (CPU, MEMORY)}
    return with_collected(
        merge_reports(mark_expired_report(row.base, now), mark_expired_report(reported, now)), row.collected
    ), stated


def _review(row: NodeFacts, now: datetime, *, first: bool = False, approved: Collection[str] = ()) -> NodeReport:
    """Check the merged report for acceptance, update the quarantine, and return the report in effect."""
    candidate, stated = _candidate(row, now)
    accepted = accept(
        row.known,
        candidate,
        growth=settings.HETSCHED_GROWTH_PERCENT / 100,
        now=rfc3339(now),
        source=AGENT if row.reported is not None else _source(row.base),
        quarantined=row.quarantined,
        approved=approved,
        first=first,
        trusted_cards=row.reported is None,
        stated=stated,
    )
    row.known, row.quarantined = accepted.known, accepted.quarantined
    row.overrides = tuple(override for override in row.overrides if override.until > rfc3339(now))
    return apply_overrides(accepted.report, row.overrides)


def write_facts(
    cluster: Cluster,
    node: Node,
    row: NodeFacts,
    now: datetime,
    *,
    columns: Collection[str] = (),
    first: bool = False,
    approved: Collection[str] = (),
) -> None:
    """Write and publish the node's merged facts. The caller must have locked the cluster before reading the node.

    `columns` are columns of `row` to write in addition to those that the acceptance check changes.
    """
    before, earlier = node.report, row.quarantined
    report = _review(row, now, first=first, approved=approved)
    _record_quarantine(cluster, node, earlier, row.quarantined)
    _save(row, columns)
    node.facts = row
    _note_maintenance(node, row)
    if report != before:
        events = differences(before, report)
        was = _load_of(node)
        if is_sampled(before, report):
            node.sampled_revision = cluster.revision
        node.changed_revision = cluster.revision
        set_report(node, report)
        write_columns([node], (*FACT_COLUMNS, "changed_revision", "sampled_revision"))
        _add_difference(cluster, was, _load_of(node))
        inventory_changed.send(sender=Cluster, cluster=cluster, events=events)
    _publish(cluster, node, before)


def _note_maintenance(node: Node, row: NodeFacts) -> None:
    """Update the node's list of GPUs and zones in maintenance if it changed."""
    found = parts_in_maintenance(row.overrides)
    if found != node.maintenance:
        node.maintenance = found
        Node.objects.filter(pk=node.pk).update(maintenance=found)


def is_sampled(before: NodeReport | None, report: NodeReport) -> bool:
    """Return whether a report contains a new measurement of the node's usage or of the free resources per NUMA zone."""
    measured = report.usage is not None and (before is None or report.usage != before.usage)
    return measured or (availability(report) != [] if before is None else availability(report) != availability(before))


def _save(row: NodeFacts, columns: Collection[str]) -> None:
    """Write `columns` and the columns that the acceptance check changes.

    All other columns are left out, because agents write them without the cluster's lock.
    """
    if row._state.adding:
        row.save()
    else:
        row.save(update_fields=[*_REVIEWED, *columns])


_Load = tuple[Mapping[str, int], int, bool, int]


def _load_of(node: Node) -> _Load:
    return dict(node.allocatable), node.card_count, node.ready and not node.unschedulable, node.cards_installed


def _add_difference(cluster: Cluster, was: _Load, now: _Load) -> None:
    """Add the difference of one node to the totals of its cluster."""
    capacity = Counter(cluster.capacity)
    capacity.update(now[0])
    capacity.subtract(was[0])
    cluster.capacity = {name: amount for name, amount in sorted(capacity.items()) if amount}
    cluster.card_count += now[1] - was[1]
    cluster.ready_count += int(now[2]) - int(was[2])
    cluster.cards_installed += now[3] - was[3]
    cluster.inventory_revision = cluster.decisive_revision = cluster.revision
    cluster.save(
        update_fields=[
            "capacity", "card_count", "cards_installed", "ready_count", "inventory_revision", "decisive_revision",
        ]
    )  # fmt: skip


def _publish(cluster: Cluster, node: Node, before: NodeReport) -> None:
    publish_many(
        {
            cluster_topic(cluster): {**cluster_head(cluster), "nodes": {node.name: tile(node)}},
            node_topic(cluster, node.name): {**node_facts_patch(node, before), **node_load(node)},
        }
    )


def _record_quarantine(
    cluster: Cluster, node: Node, before: Iterable[FactInQuarantine], after: Iterable[FactInQuarantine]
) -> None:
    """Record all newly quarantined facts in one audit entry, so that a faulty node cannot flood the audit trail."""
    earlier = {fact.id for fact in before}
    new = sorted((fact for fact in after if fact.id not in earlier), key=lambda fact: (fact.fact, fact.item, fact.id))
    if not new:
        return
    facts = [
        {"fact": fact.fact, "item": fact.item, "change": fact.change, "known": fact.known, "told": fact.reported}
        for fact in new[:_MOST_RECORDED]
    ]
    details = {"count": len(new), "facts": facts}
    record(
        actor=SYSTEM.name, role=SYSTEM.role, action="node.quarantine", obj=audit_name(cluster, node), details=details
    )


def audit_name(cluster: Cluster, node: Node) -> tuple[str, str]:
    """Return the object kind and name that audit entries use for a node."""
    return "node", f"{cluster.name}/{node.name}"


# -- reports of the cluster --------------------------------------------------------------------------------------------


def merge_agent_facts(cluster: Cluster, reports: Iterable[NodeReport]) -> list[NodeReport]:
    """Merge the reports of an operator's files with the reports of agents, inside the import's transaction."""
    known = {node.name: node for node in Node.objects.filter(cluster=cluster, facts__isnull=False)}
    return merge_node_reports(cluster, reports, known)


def merge_node_reports(cluster: Cluster, reports: Iterable[NodeReport], known: Mapping[str, Node]) -> list[NodeReport]:
    """Merge new reports of an API server with the reports of agents, inside the informer's transaction.

    `known` maps names to stored nodes; reports of other nodes are used unchanged. Expired samples are marked as stale.
    """
    reports = list(reports)
    names = [report.name for report in reports if report.name in known]
    rows = {row.node_id: row for row in NodeFacts.objects.filter(node__cluster=cluster, node__name__in=names)}
    now = timezone.now()
    found = []
    for report in reports:
        node = known.get(report.name)
        if node is None:
            found.append(mark_expired_report(report, now))
            continue
        row = rows.get(node.pk)
        if row is not None and row.base == report and not node.gone:
            found.append(node.report)  # unchanged, like most nodes when an informer starts
            continue
        if row is None or _is_plain(row):
            if _check_acceptance(node.report if row is None else row.base, report, now) is None:
                found.append(mark_expired_report(report, now) if row is None else _rebase_quarantine(row, report, now))
                continue
            row = row or new_facts(node)
        earlier, columns = row.quarantined, ["base"]
        if row.base.uid != report.uid:
            # The uid shows that this is another machine with the same name, so the report of the previous machine's
            # agent is dropped.
            row.reported, row.digest, row.usage = None, "", None
            columns += ["reported", "digest", "usage"]
        row.base = report
        row.claims = record_claim(row.claims, _source(report), fact_texts(report), rfc3339(now))
        effective = _review(row, now)
        _note_maintenance(node, row)
        _record_quarantine(cluster, node, earlier, row.quarantined)
        _save(row, columns)
        found.append(effective)
    return found


def _is_plain(row: NodeFacts) -> bool:
    """Return whether a node has no agent report, quarantine or override; collectors' facts are merged in any case."""
    return row.reported is None and not row.quarantined and not row.overrides


def _rebase_quarantine(row: NodeFacts, report: NodeReport, now: datetime) -> NodeReport:
    row.base = row.known = report
    row.claims = record_claim(row.claims, _source(report), fact_texts(report), rfc3339(now))
    row.save(update_fields=["base", "known", "claims"])
    return with_collected(mark_expired_report(report, now), row.collected)


def _check_acceptance(before: NodeReport, after: NodeReport, now: datetime) -> AcceptedFacts | None:
    """Return the acceptance result if a report removes parts in use or increases amounts too much, else None."""
    same_parts = before.uid == after.uid and before.gpus == after.gpus and before.numa == after.numa
    if same_parts and before.allocatable == after.allocatable:
        return None
    # The report comes from a client with write access to nodes. Unlike an agent, it may add GPUs (`trusted_cards`) and
    # omit the GPU list, in which case the previous list stays in use.
    listed = after if after.gpus is not None else _replace(after, gpus=before.gpus)
    growth = settings.HETSCHED_GROWTH_PERCENT / 100
    accepted = accept(before, listed, growth=growth, now=rfc3339(now), source=_source(after), trusted_cards=True)
    return accepted if accepted.quarantined else None
