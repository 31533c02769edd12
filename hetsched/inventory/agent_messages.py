"""Where agents are heard: messages are taken in, in order, and only what changed is settled.

Rule: what only confirms facts, and use, is noted beside the node without the cluster's lock. An agent that started
later takes over from another of its node; messages of one agent count in order.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import Count, Min, Q
from django.utils import timezone

from hetsched.adapters.node_facts.agent_reports import usage_facts
from hetsched.adapters.node_facts.collected_facts import measured_by
from hetsched.adapters.node_facts.report_merge import newer
from hetsched.contracts.agent_message import AgentMessage, digest_of, lasting
from hetsched.contracts.agent_report import AgentReport, MachineUsage
from hetsched.contracts.errors import InputError
from hetsched.contracts.facts import noted
from hetsched.contracts.times import rfc3339, seconds
from hetsched.contracts.units import DISK_MBPS, INT64_MAX, NETWORK_MBPS

from .facts import AGENT, new_facts, settle
from .ledger import advance, write_columns
from .models import Cluster, Node
from .node_facts import NodeFacts

_replace = msgspec.structs.replace
# An agent whose watch is set anew may seem to have started a little later than it did.
_MOST_AHEAD = timedelta(minutes=5)


class Heard(msgspec.Struct, frozen=True):
    """What became of a message; `wanted`: its report is not known here, so that the whole is to be sent."""

    node: Node
    wanted: bool = False


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
        report = _replace(row.told, pinned=message.pinned)
    else:
        report = message.report
        if report.node != message.node:
            raise InputError("ReportMalformed", f"it is about node {report.node[:80]!r}", place="report.node")
    if row is not None and row.told is not None and not _has_news(row, message):
        _note(row, message, started, now)
        return Heard(node)
    return Heard(_take_in(node, message, report, started))


def _started(message: AgentMessage, now: datetime) -> datetime:
    at = seconds(message.started_at)
    if at is None or at < 0 or not 1 <= message.sequence <= INT64_MAX or not message.instance:
        raise InputError("ReportMalformed", "it does not say which start of an agent it is from", place="startedAt")
    if len(message.instance) > 64 or len(message.digest) > 64:
        raise InputError("ReportMalformed", "instance and digest have at most 64 characters", place="instance")
    if at > (now + _MOST_AHEAD).timestamp():
        raise InputError(
            "ReportMalformed", "its agent says that it started in the future", place="startedAt",
            hint="Set the clock of the node",
        )  # fmt: skip
    return datetime.fromtimestamp(at, UTC)


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


def _has_news(row: NodeFacts, message: AgentMessage) -> bool:
    """Tell whether a message says anything else that decisions rest on; how much network there is comes with use."""
    usage, report = _use_of(message), message.report
    if usage is not None:
        before = row.usage.capacity if row.usage is not None else {}
        if any(usage.capacity.get(name) != before.get(name) for name in (NETWORK_MBPS, DISK_MBPS)):
            return True
    return report is not None and lasting(row.told) != lasting(report)


def _use_of(message: AgentMessage) -> MachineUsage | None:
    return message.usage or (message.report.usage if message.report else None)


def _note(row: NodeFacts, message: AgentMessage, started: datetime, now: datetime) -> None:
    """Note that what is known still holds, with its use; nothing that decisions rest on changes."""
    usage = _sample(message, now)
    pinned = message.pinned if message.report is None else message.report.pinned
    row.pinned = pinned
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
    with transaction.atomic():
        # What collectors said meanwhile stays: their words stand in the same column.
        row.claims = NodeFacts.objects.select_for_update().only("claims").get(pk=row.pk).claims
        row.claims = _confirmed(row, rfc3339(now))
        row.save(update_fields=columns)


def _sample(message: AgentMessage, now: datetime) -> MachineUsage | None:
    """Return the use that a message tells, taken now at the latest: a sample from the future makes all others stale."""
    usage = _use_of(message)
    if usage is None or (seconds(usage.observed_at) or math.inf) <= now.timestamp():
        return usage
    return _replace(usage, observed_at=rfc3339(now))


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
        columns = ["told", "digest", "agent", "pinned"]
        usage = _sample(message, now)
        if usage is not None:
            row.usage, row.usage_taken = usage, True
            columns += ["usage", "usage_taken"]
        for name, value in _of_message(message, started, now).items():
            setattr(row, name, value)
            columns.append(name)
        settle(cluster, node, row, now, columns=columns, first=first)
    return node


def take_samples(cluster_id: int) -> int:
    """Take use that agents measured into the reports of their nodes, all at once; return how many there were."""
    waiting = NodeFacts.objects.filter(node__cluster_id=cluster_id, usage_taken=False)
    if not waiting.exists():
        return 0
    with transaction.atomic():
        cluster = advance(cluster_id)
        changed = []
        # Marked before they are read: what comes meanwhile is marked anew, and taken the next time.
        taken = list(waiting.values_list("pk", flat=True))
        NodeFacts.objects.filter(pk__in=taken).update(usage_taken=True)
        rows = NodeFacts.objects.filter(pk__in=taken).select_related("node")
        for row in rows.only("usage", "collected", "node"):
            node, sample = row.node, usage_facts(row.usage, [])
            if measured_by(row.collected) is not None:
                continue  # one source at a time: samples of two are not of one mind
            latest = newer(node.report.usage, sample)
            if latest is not None and latest != node.report.usage:
                node.report = _replace(node.report, usage=latest)
                node.sampled_revision = node.changed_revision = cluster.revision
                changed.append(node)
        write_columns(changed, ("report", "changed_revision", "sampled_revision"))
        cluster.inventory_revision = cluster.revision
        cluster.save(update_fields=["inventory_revision"])
    return len(changed)


def silent_since(now: datetime) -> datetime:
    """Return the moment that an agent must have been heard of since, to be one that reports."""
    return now - timedelta(seconds=3 * settings.HETSCHED_AGENT_REPORT_SECONDS)


def agents_of(cluster_id: int) -> dict[str, Any] | None:
    """Return how many nodes have an agent, and of how many it was heard of lately; None where there is none.

    `doubted` is how many have facts in quarantine, and `doubted_first` the first of them by name.
    """
    rows = NodeFacts.objects.filter(node__cluster_id=cluster_id, heard_at__isnull=False)
    doubted = ~Q(quarantined=[])
    found = rows.aggregate(
        all=Count("pk"),
        reporting=Count("pk", filter=Q(heard_at__gte=silent_since(timezone.now()))),
        doubted=Count("pk", filter=doubted),
        doubted_first=Min("node__name", filter=doubted),
    )
    return found if found["all"] else None
