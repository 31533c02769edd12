"""Where words on nodes are taken in: what agents report, what it comes to with the cluster's own, what operators rule.

Rule: facts that changed go through `adapters.merging` under the cluster's lock, as every change of a node does; what
only confirms them, and use, is noted beside the node without that lock. The follower of a cluster gives what the API
server says through `merged`, so that the agent's words stay where they are. An agent that started later takes over from
another of its node; messages of one agent count in order.
Invariant: nothing that counted is gone from a node's report without an operator's word; see `merging.weigh`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

from hetsched.adapters.agent_reports import node_facts as facts_of
from hetsched.adapters.agent_reports import usage_facts
from hetsched.adapters.collected_facts import measured_by, with_collected
from hetsched.adapters.merging import Weighed, laid_over, newer, weigh, words_of
from hetsched.contracts.agent_message import AgentMessage, digest_of, lasting
from hetsched.contracts.agent_report import AgentReport
from hetsched.contracts.errors import InputError
from hetsched.contracts.facts import FactInQuarantine, Override, noted
from hetsched.contracts.node_report import NodeReport
from hetsched.contracts.times import rfc3339
from hetsched.engine.hints import differences
from hetsched.journal.audit import SYSTEM, Actor, record
from hetsched.journal.publish import publish_many

from .actions import FACT_COLUMNS, cluster_topic, describe, node_topic, require_reason
from .ledger import advance, write_columns
from .models import Cluster, Node
from .node_facts import NodeFacts
from .overriding import overridden, read_override
from .signals import inventory_changed
from .tiles import cluster_head, node_load, tile, without_nulls
from .tiles import node_facts as node_document

AGENT = "agent"
_replace = msgspec.structs.replace
# An agent whose watch is set anew may seem to have started a little later than it did.
_MOST_AHEAD = timedelta(minutes=5)


class Heard(msgspec.Struct, frozen=True):
    """What became of a message; `wanted`: its report is not known here, so that the whole is to be sent."""

    node: Node
    wanted: bool = False


# -- agents ------------------------------------------------------------------------------------------------------------


def hear(cluster: Cluster, message: AgentMessage) -> Heard:
    """Take in one message of a node's agent.

    Raises: InputError `NodeUnknown`, `ReportMalformed`, `AgentSuperseded`, `ReportOutOfOrder` or `ReportTooSoon`.
    """
    now = timezone.now()
    started = _started(message, now)
    node = Node.objects.select_related("cluster").filter(cluster=cluster, name=message.node, gone=False).first()
    if node is None:
        raise InputError("NodeUnknown", f"cluster {cluster.name} has no node {message.node[:80]!r}", place="node")
    row = NodeFacts.objects.filter(node=node).first()
    if row is not None and _is_repeated(row, message, started, now):
        return Heard(node, wanted=row.told is None)
    if message.report is None:
        if row is None or row.told is None or row.digest != message.digest:
            if row is not None:
                NodeFacts.objects.filter(pk=row.pk).update(**_of_message(message, started, now))
            return Heard(node, wanted=True)
        _note(row, message, started, now)
        return Heard(node)
    report = message.report
    if report.node != message.node:
        raise InputError("ReportMalformed", f"it is about node {report.node[:80]!r}", place="report.node")
    if row is not None and row.told is not None and lasting(row.told) == lasting(report):
        _note(row, message, started, now)
        return Heard(node)
    return Heard(_take_in(node, message, report, started))


def _started(message: AgentMessage, now: datetime) -> datetime:
    try:
        started = datetime.fromisoformat(message.started_at)
    except ValueError:
        started = None
    if started is None or started.tzinfo is None or message.sequence < 1 or not message.instance:
        raise InputError("ReportMalformed", "it does not say which start of an agent it is from", place="startedAt")
    if len(message.instance) > 64 or len(message.digest) > 64:
        raise InputError("ReportMalformed", "instance and digest have at most 64 characters", place="instance")
    if started > now + _MOST_AHEAD:
        raise InputError(
            "ReportMalformed", "its agent says that it started in the future", place="startedAt",
            hint="Set the clock of the node",
        )  # fmt: skip
    return started.astimezone(UTC)


def _is_repeated(row: NodeFacts, message: AgentMessage, started: datetime, now: datetime) -> bool:
    """Tell whether a message was answered already; refuse what comes from an agent or a moment of before."""
    if row.instance == message.instance:
        if message.sequence < row.sequence:
            raise InputError("ReportOutOfOrder", f"message {row.sequence} of this agent came before", place="sequence")
        if message.sequence == row.sequence:
            return True
        if row.heard_at and now - row.heard_at < timedelta(milliseconds=settings.HETSCHED_AGENT_PAUSE_MILLIS):
            raise InputError("ReportTooSoon", "another message of this node came just now", hint="Wait a second")
    elif row.started_at is not None and (row.started_at, row.instance) > (started, message.instance):
        raise InputError(
            "AgentSuperseded", "another agent of this node started later", place="instance",
            hint="Only one agent may run on a node; stop the others",
        )  # fmt: skip
    return False


def _of_message(message: AgentMessage, started: datetime, now: datetime) -> dict[str, object]:
    """Return the columns that every message sets."""
    return {"instance": message.instance, "started_at": started, "sequence": message.sequence, "heard_at": now}


def _note(row: NodeFacts, message: AgentMessage, started: datetime, now: datetime) -> None:
    """Note that what is known still holds, with its use; nothing that decisions rest on changes."""
    usage = message.usage or (message.report.usage if message.report else None)
    pinned = message.pinned if message.report is None else message.report.pinned
    row.pinned = pinned
    row.claims = _confirmed(row, rfc3339(now))
    columns = ["pinned", "claims"]
    if message.report is not None:
        row.told, row.digest = _replace(message.report, usage=None, pinned=None), digest_of(message.report)
        columns += ["told", "digest"]
    if usage is not None:
        row.usage, row.usage_taken = usage, False
        columns += ["usage", "usage_taken"]
    for name, value in _of_message(message, started, now).items():
        setattr(row, name, value)
        columns.append(name)
    row.save(update_fields=columns)


def _confirmed(row: NodeFacts, now: str) -> dict[str, tuple[msgspec.Struct, ...]]:
    words = {fact: said.text for fact, all_said in row.claims.items() for said in all_said if _is_agents(said)}
    return noted(row.claims, AGENT, words, now)  # type: ignore[return-value]


def _is_agents(said: object) -> bool:
    return bool(getattr(said, "source", "") == AGENT and getattr(said, "current", False))


def _take_in(node: Node, message: AgentMessage, report: AgentReport, started: datetime) -> Node:
    """Take facts in that changed, under the cluster's lock."""
    with transaction.atomic():
        cluster = advance(node.cluster_id)
        node = Node.objects.select_related("cluster").get(pk=node.pk)
        now = timezone.now()
        row = NodeFacts.objects.filter(node=node).first() or new_facts(node)
        first = row.told is None
        row.told = _replace(report, usage=None, pinned=None)
        row.digest = digest_of(report)
        row.agent = report.agent[:100]
        row.pinned = report.pinned
        usage = report.usage or message.usage
        if usage is not None:
            row.usage, row.usage_taken = usage, True
        for name, value in _of_message(message, started, now).items():
            setattr(row, name, value)
        settle(cluster, node, row, now, first=first)
    return node


def new_facts(node: Node) -> NodeFacts:
    row = NodeFacts(node=node, base=node.report, known=node.report)
    row.claims = noted({}, _source(node.report), words_of(node.report), rfc3339(node.updated_at))
    return row


def _source(report: NodeReport) -> str:
    return report.source or "file"


# -- what it comes to --------------------------------------------------------------------------------------------------


def _candidate(row: NodeFacts, now: datetime) -> NodeReport:
    """Return what all sources say together."""
    if row.told is None:
        return with_collected(row.base, row.collected)
    told = facts_of(_replace(row.told, usage=row.usage), observed_at=rfc3339(row.heard_at or now))
    row.claims = noted(row.claims, AGENT, words_of(told), rfc3339(row.heard_at or now))
    return with_collected(laid_over(row.base, told), row.collected)


def _weighed(row: NodeFacts, now: datetime, *, first: bool = False, approved: Collection[str] = ()) -> NodeReport:
    """Weigh what is said anew, note what is in quarantine, and return what counts."""
    weighed = weigh(
        row.known,
        _candidate(row, now),
        growth=settings.HETSCHED_GROWTH_PERCENT / 100,
        now=rfc3339(now),
        source=AGENT if row.told is not None else _source(row.base),
        standing=row.quarantined,
        approved=approved,
        first=first,
        trusted_cards=row.told is None,
    )
    row.known, row.quarantined = weighed.known, weighed.quarantined
    row.overrides = tuple(one for one in row.overrides if one.until > rfc3339(now))
    return overridden(weighed.report, row.overrides)


def settle(
    cluster: Cluster, node: Node, row: NodeFacts, now: datetime, *, first: bool = False, approved: Collection[str] = ()
) -> None:
    """Write what a node's facts come to by now, and tell it; the cluster is locked and the node read since."""
    before, stood = node.report, row.quarantined
    report = _weighed(row, now, first=first, approved=approved)
    _record_quarantine(cluster, node, stood, row.quarantined)
    row.save()
    node.facts = row
    if report != before:
        events = differences(before, report)
        was = _load_of(node)
        if report.usage is not None and report.usage != before.usage:
            node.sampled_revision = cluster.revision
        node.changed_revision = cluster.revision
        describe(node, report)
        write_columns([node], (*FACT_COLUMNS, "changed_revision", "sampled_revision"))
        _add_difference(cluster, was, _load_of(node))
        inventory_changed.send(sender=Cluster, cluster=cluster, events=events)
    _tell(cluster, node)


def _load_of(node: Node) -> tuple[Mapping[str, int], int, bool]:
    return dict(node.allocatable), node.card_count, node.ready and not node.unschedulable


def _add_difference(
    cluster: Cluster, was: tuple[Mapping[str, int], int, bool], now: tuple[Mapping[str, int], int, bool]
) -> None:
    """Add what one node has more, or less, to the totals of its cluster."""
    capacity = Counter(cluster.capacity)
    capacity.update(now[0])
    capacity.subtract(was[0])
    cluster.capacity = {name: amount for name, amount in sorted(capacity.items()) if amount}
    cluster.card_count += now[1] - was[1]
    cluster.ready_count += int(now[2]) - int(was[2])
    cluster.inventory_revision = cluster.decisive_revision = cluster.revision
    cluster.save(
        update_fields=["capacity", "card_count", "ready_count", "inventory_revision", "decisive_revision"]
    )  # fmt: skip


def _tell(cluster: Cluster, node: Node) -> None:
    publish_many(
        {
            cluster_topic(cluster): {**cluster_head(cluster), "nodes": {node.name: tile(node)}},
            node_topic(cluster, node.name): without_nulls({**node_document(node), **node_load(node)}),
        }
    )


def _record_quarantine(
    cluster: Cluster, node: Node, before: Iterable[FactInQuarantine], after: Iterable[FactInQuarantine]
) -> None:
    """Write down what came into quarantine, and what is back as it was."""
    stood, stands = {one.id: one for one in before}, {one.id: one for one in after}
    for new in stands.keys() - stood.keys():
        one = stands[new]
        details = {"fact": one.fact, "item": one.item, "change": one.change, "known": one.known, "told": one.told}
        record(
            actor=SYSTEM.name, role=SYSTEM.role, action="node.quarantine", obj=_named(cluster, node), details=details
        )


def _named(cluster: Cluster, node: Node) -> tuple[str, str]:
    return "node", f"{cluster.name}/{node.name}"


# -- what the cluster says ---------------------------------------------------------------------------------------------


def with_words_of_agents(cluster: Cluster, reports: Iterable[NodeReport]) -> list[NodeReport]:
    """Return what an operator's files come to with the words of agents, inside the import's transaction."""
    known = {node.name: node for node in Node.objects.filter(cluster=cluster, facts__isnull=False)}
    return merged(cluster, reports, known)


def merged(cluster: Cluster, reports: Iterable[NodeReport], known: Mapping[str, Node]) -> list[NodeReport]:
    """Return what new words of an API server come to with those of agents, inside the follower's transaction.

    `known` are the nodes by name; of nodes that are not known the reports count as they are.
    """
    reports = list(reports)
    names = [report.name for report in reports if report.name in known]
    rows = {row.node_id: row for row in NodeFacts.objects.filter(node__cluster=cluster, node__name__in=names)}
    now = timezone.now()
    found = []
    for report in reports:
        node = known.get(report.name)
        if node is None:
            found.append(report)
            continue
        row = rows.get(node.pk)
        if row is not None and row.base == report and not node.gone:
            found.append(node.report)  # said before, as everything is to one who begins to follow
            continue
        if row is None or _is_plain(row):
            if _suspicious(node.report if row is None else row.base, report, now) is None:
                found.append(report if row is None else _rebased(row, report, now))
                continue
            row = row or new_facts(node)
        stood = row.quarantined
        if row.base.uid != report.uid:
            # Another machine of this name: what the agent of the old one said is not about it.
            row.told, row.digest, row.usage = None, "", None
        row.base = report
        row.claims = noted(row.claims, _source(report), words_of(report), rfc3339(now))
        effective = _weighed(row, now)
        _record_quarantine(cluster, node, stood, row.quarantined)
        row.save()
        found.append(effective)
    return found


def _is_plain(row: NodeFacts) -> bool:
    """Tell whether no agent speaks for a node, and no operator ruled about it: what collectors say is laid over."""
    return row.told is None and not row.quarantined and not row.overrides


def _rebased(row: NodeFacts, report: NodeReport, now: datetime) -> NodeReport:
    row.base = row.known = report
    row.claims = noted(row.claims, _source(report), words_of(report), rfc3339(now))
    row.save(update_fields=["base", "known", "claims"])
    return with_collected(report, row.collected)


def _suspicious(before: NodeReport, after: NodeReport, now: datetime) -> Weighed | None:
    """Return how a report weighs that takes away what counted, or has far more; None where there is nothing to it."""
    same_parts = before.uid == after.uid and before.gpus == after.gpus and before.numa == after.numa
    if same_parts and before.allocatable == after.allocatable:
        return None
    # Whoever may describe nodes in the cluster may add cards and take their list away: only an agent may not.
    listed = after if after.gpus is not None else _replace(after, gpus=before.gpus)
    growth = settings.HETSCHED_GROWTH_PERCENT / 100
    weighed = weigh(before, listed, growth=growth, now=rfc3339(now), source=_source(after), trusted_cards=True)
    return weighed if weighed.quarantined else None


# -- operators ---------------------------------------------------------------------------------------------------------

# Raises where somebody still holds what would go: node, what is known without it.
Check = Callable[[Node, NodeReport], None]


def approve(
    cluster: Cluster, node_name: str, fact: str, *, actor: Actor, reason: str, check: Check | None = None
) -> Node:
    """Say that what is told of a quarantined fact is so: what is missing is gone for good, what grew counts.

    Raises: InputError `NodeUnknown`, `ReasonMissing`, `FactUnknown`, or what `check` raises.
    """
    return _rule(cluster, node_name, fact, "approve", actor, reason, check)


def reject(cluster: Cluster, node_name: str, fact: str, *, actor: Actor, reason: str) -> Node:
    """Say that what is told of a quarantined fact is wrong: what was known counts on, until something else is told.

    Raises: InputError `NodeUnknown`, `ReasonMissing`, `FactUnknown`.
    """
    return _rule(cluster, node_name, fact, "reject", actor, reason, None)


def _rule(
    cluster: Cluster, node_name: str, fact: str, verdict: str, actor: Actor, reason: str, check: Check | None
) -> Node:
    reason = require_reason(reason)
    with transaction.atomic():
        locked = advance(cluster.pk)
        node, row = _find(locked, node_name)
        one = next((one for one in row.quarantined if one.id == fact), None) if row is not None else None
        if row is None or one is None:
            raise InputError("FactUnknown", f"no fact {fact[:40]!r} of {node_name[:80]} is in quarantine", place="fact")
        approved = [one.id] if verdict == "approve" else []
        if verdict == "reject":
            row.quarantined = tuple(
                _replace(other, state="rejected") if other is one else other for other in row.quarantined
            )
        settle(locked, node, row, timezone.now(), approved=approved)
        if check is not None:
            check(node, row.known)
        details = {"fact": one.fact, "item": one.item, "change": one.change, "known": one.known, "told": one.told}
        record(
            actor=actor.name, role=actor.role, action=f"node.{verdict}", obj=_named(locked, node), reason=reason,
            details=details,
        )  # fmt: skip
    return node


def override(
    cluster: Cluster, node_name: str, fact: str, value: str | None, until: str | None, *, actor: Actor, reason: str
) -> Node:
    """State a fact of a node until a moment, whatever others say; a value of None takes that back.

    Raises: InputError `NodeUnknown`, `ReasonMissing`, `FactUnknown`, `FactInvalid`, `ExpiryInvalid`.
    """
    reason = require_reason(reason)
    now = timezone.now()
    with transaction.atomic():
        locked = advance(cluster.pk)
        node, row = _find(locked, node_name)
        row = row or new_facts(node)
        kept = tuple(one for one in row.overrides if one.fact != fact)
        if value is not None:
            ends = _expiry(until, now)
            read_override(node.report, fact, value)
            kept = (*kept, Override(fact, value, ends, rfc3339(now), actor.name, reason))
        elif kept == row.overrides:
            raise InputError("FactUnknown", f"fact {fact[:80]!r} is not overridden", place="fact")
        row.overrides = kept
        settle(locked, node, row, now)
        details = {"fact": fact, "value": value, "until": until}
        record(
            actor=actor.name, role=actor.role, action="node.override", obj=_named(locked, node), reason=reason,
            details=details,
        )  # fmt: skip
    return node


def _expiry(until: str | None, now: datetime) -> str:
    try:
        moment = datetime.fromisoformat(until or "")
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or not now < moment <= now + timedelta(days=365):
        message = "it must be a moment in RFC 3339, from now to a year on"
        raise InputError("ExpiryInvalid", message, place="until")
    return rfc3339(moment)


def _find(cluster: Cluster, node_name: str) -> tuple[Node, NodeFacts | None]:
    node = Node.objects.select_related("cluster").filter(cluster=cluster, name=node_name).first()
    if node is None:
        raise InputError("NodeUnknown", f"cluster {cluster.name} has no node {node_name[:80]!r}", place="node")
    return node, NodeFacts.objects.filter(node=node).first()


# -- what time does ----------------------------------------------------------------------------------------------------


def end_overrides(cluster_id: int) -> int:
    """Let overrides go whose time is over; return how many nodes had some."""
    now = timezone.now()
    rows = NodeFacts.objects.filter(node__cluster_id=cluster_id).exclude(overrides=[])
    over = [row.pk for row in rows.only("overrides") if any(one.until <= rfc3339(now) for one in row.overrides)]
    for pk in over:
        with transaction.atomic():
            cluster = advance(cluster_id)
            node = Node.objects.select_related("cluster").get(pk=pk)
            settle(cluster, node, NodeFacts.objects.get(pk=pk), now)
    return len(over)


def take_samples(cluster_id: int) -> int:
    """Take use that agents measured into the reports of their nodes, all at once; return how many there were."""
    waiting = NodeFacts.objects.filter(node__cluster_id=cluster_id, usage_taken=False)
    if not waiting.exists():
        return 0
    with transaction.atomic():
        cluster = advance(cluster_id)
        changed = []
        for row in waiting.select_related("node").only("usage", "collected", "node"):
            node, sample = row.node, usage_facts(row.usage, [])
            if measured_by(row.collected) is not None:
                continue  # one source at a time: samples of two are not of one mind
            latest = newer(node.report.usage, sample)
            if latest is not None and latest != node.report.usage:
                node.report = _replace(node.report, usage=latest)
                node.sampled_revision = node.changed_revision = cluster.revision
                changed.append(node)
        waiting.update(usage_taken=True)
        write_columns(changed, ("report", "changed_revision", "sampled_revision"))
        cluster.inventory_revision = cluster.revision
        cluster.save(update_fields=["inventory_revision"])
    return len(changed)


def silent_since(now: datetime) -> datetime:
    """Return the moment that an agent must have been heard of since, to be one that reports."""
    return now - timedelta(seconds=3 * settings.HETSCHED_AGENT_REPORT_SECONDS)


def agents_of(cluster_id: int) -> dict[str, int] | None:
    """Return how many nodes have an agent, and of how many it was heard of lately; None where there is none."""
    rows = NodeFacts.objects.filter(node__cluster_id=cluster_id, heard_at__isnull=False)
    found = rows.aggregate(all=Count("pk"), reporting=Count("pk", filter=Q(heard_at__gte=silent_since(timezone.now()))))
    return found if found["all"] else None
