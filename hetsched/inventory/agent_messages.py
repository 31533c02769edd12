"""Receive the messages of node agents, in order, and write the changed facts.

Usage samples and confirmations of known facts are stored in the node's `NodeFacts` row, without the cluster's lock. An
agent that started later replaces the previous agent of its node; messages of one agent are accepted in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.db.models import Count, Min, Q
from django.utils import timezone

from hetsched.adapters.node_facts.agent_reports import usage_facts
from hetsched.adapters.node_facts.collected_facts import measured_by
from hetsched.adapters.node_facts.report_merge import newer
from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.agent_message import AgentMessage, durable_parts
from hetsched.contracts.messages.agent_report import AgentReport, KubeletState, MachineUsage
from hetsched.contracts.objects.facts import record_claim
from hetsched.contracts.times import rfc3339, seconds
from hetsched.contracts.units import DISK_MBPS, INT64_MAX, NETWORK_MBPS
from hetsched.storage.write_lock import write_transaction

from .actions import node_unknown_error
from .facts import AGENT, new_facts, write_facts
from .freshness import SAMPLE_COLUMNS, mark_expired, set_usage
from .models import Cluster, Node
from .models.node_facts import NodeFacts
from .node_loads import advance, write_columns

_replace = msgspec.structs.replace
# Tolerance for start times in the future, because the clocks of an agent and the server may differ slightly.
_MOST_AHEAD = timedelta(minutes=5)
_DIGEST_LENGTH = 64  # of the column
_ORDER_COLUMNS = ("instance", "started_at", "sequence", "reported_at")


class MessageResult(msgspec.Struct, frozen=True):
    """Result of a message; if `wanted` is true, the server has no current report and the agent must send a full one."""

    node: Node
    wanted: bool = False


Known = Callable[[KubeletState], Collection[str]]


def receive(cluster: Cluster, message: AgentMessage, *, known: Known = lambda kubelet: ()) -> MessageResult:
    """Process one message of a node's agent.

    `known` is called with the state of the node's kubelet. It returns those keys of `exclusive` and `devices` that
    belong to pods known to the control plane. The resources of these pods are already covered by reservations.
    Raises: InputError `NodeUnknown`, `ReportMalformed`, `AgentSuperseded`, `ReportOutOfOrder` or `ReportTooSoon`.
    """
    now = timezone.now()
    started = _agent_start(message, now)
    node = Node.objects.select_related("cluster").filter(cluster=cluster, name=message.node, gone=False).first()
    if node is None:
        raise node_unknown_error(cluster, message.node)
    row = NodeFacts.objects.filter(node=node).first()
    if row is not None and _is_repeated(row, message, started, now):
        return MessageResult(node, wanted=row.reported is None)
    if message.report is None:
        if row is None or row.reported is None or row.digest != _digest(message):
            if row is not None:
                NodeFacts.objects.filter(pk=row.pk).update(**_message_columns(message, started, now))
            return MessageResult(node, wanted=True)
        report = _replace(row.reported, pinned=message.pinned)
    else:
        report = message.report
        if report.node != message.node:
            raise InputError("ReportMalformed", f"the report is about node {report.node[:80]!r}", place="report.node")
        report = _with_unknown_pods(report, known)
        message = _replace(message, report=report)
    if row is not None and row.reported is not None and not _has_changed_facts(row, message):
        _write_confirmation(row, message, started, now)
        return MessageResult(node)
    return MessageResult(_write_facts(node, message, report, started))


def _with_unknown_pods(report: AgentReport, known: Known) -> AgentReport:
    """Set `foreign` in a report: the pods with CPUs, devices or memory that the control plane does not know."""
    kubelet = report.kubelet
    if kubelet is None:
        return report
    granted = kubelet.holders
    foreign = granted - set(known(kubelet)) if granted else ()
    return _replace(report, kubelet=_replace(kubelet, foreign=tuple(sorted(foreign))))


def _agent_start(message: AgentMessage, now: datetime) -> datetime:
    at = seconds(message.started_at)
    if at is None or at < 0:
        raise InputError("ReportMalformed", "the start time of the agent is not an RFC 3339 time", place="startedAt")
    if not 1 <= message.sequence <= INT64_MAX:
        raise InputError("ReportMalformed", f"the sequence number is not between 1 and {INT64_MAX}", place="sequence")
    if not message.instance:
        raise InputError("ReportMalformed", "the field instance is missing", place="instance")
    if len(message.instance) > 64 or len(message.digest) > 64:
        raise InputError("ReportMalformed", "instance or digest is longer than 64 characters", place="instance")
    if at > (now + _MOST_AHEAD).timestamp():
        raise InputError(
            "ReportMalformed", "the start time of the agent is in the future", place="startedAt",
            hint="Set the clock of the node",
        )  # fmt: skip
    return datetime.fromtimestamp(at, UTC)


def _is_repeated(row: NodeFacts, message: AgentMessage, started: datetime, now: datetime) -> bool:
    """Return whether a message was already processed; reject it if it is too early, out of order or superseded."""
    if row.instance == message.instance:
        if message.sequence < row.sequence:
            raise InputError(
                "ReportOutOfOrder", f"message {row.sequence} of this agent was already received", place="sequence"
            )
        if message.sequence == row.sequence:
            return True
        pause = settings.HETSCHED_AGENT_PAUSE_MILLIS
        if row.reported_at and now - row.reported_at < timedelta(milliseconds=pause):
            text = f"the previous message of this node was received less than {pause} ms ago"
            raise InputError("ReportTooSoon", text, hint=f"Wait {pause} ms between messages")
    elif row.started_at is not None and (row.started_at, row.instance) > (started, message.instance):
        raise InputError(
            "AgentSuperseded", "a newer agent is running on this node", place="instance",
            hint="Run one agent per node and stop the others",
        )  # fmt: skip
    return False


def _message_columns(message: AgentMessage, started: datetime, now: datetime) -> dict[str, object]:
    """Return the column values that every message sets."""
    return {"instance": message.instance, "started_at": started, "sequence": message.sequence, "reported_at": now}


def _has_changed_facts(row: NodeFacts, message: AgentMessage) -> bool:
    """Return whether a message changes facts that scheduling decisions use, such as the network and disk capacity."""
    usage, report = _usage_of(message), message.report
    if usage is not None:
        before = row.usage.capacity if row.usage is not None else {}
        if any(usage.capacity.get(name) != before.get(name) for name in (NETWORK_MBPS, DISK_MBPS)):
            return True
    return report is not None and durable_parts(row.reported) != durable_parts(report)


def _usage_of(message: AgentMessage) -> MachineUsage | None:
    return message.usage or (message.report.usage if message.report else None)


def _write_confirmation(row: NodeFacts, message: AgentMessage, started: datetime, now: datetime) -> None:
    """Record a message that only confirms the stored facts, and its usage sample."""
    usage = _sample(message, now)
    pinned = message.pinned if message.report is None else message.report.pinned
    row.pinned = pinned
    columns = ["pinned", "claims"]
    if message.report is not None:
        row.reported, row.digest = _replace(message.report, usage=None, pinned=None), _digest(message)
        columns += ["reported", "digest"]
    if usage is not None:
        row.usage, row.usage_taken = usage, False
        columns += ["usage", "usage_taken"]
    for name, value in _message_columns(message, started, now).items():
        setattr(row, name, value)
        columns.append(name)
    with write_transaction():
        current = NodeFacts.objects.select_for_update().only("claims", *_ORDER_COLUMNS).get(pk=row.pk)
        if _is_repeated(current, message, started, now):  # a later message may have been processed since
            return
        # Statements of collectors are stored in the same column and may have changed in the meantime.
        row.claims = current.claims
        row.claims = _confirm_sources(row, rfc3339(now))
        row.save(update_fields=columns)


def _digest(message: AgentMessage) -> str:
    """Return the agent's digest of the report that it has sent with this message or before.

    An agent of another version may have other fields in its report, so the server does not compute the digest itself.
    """
    return message.digest[:_DIGEST_LENGTH]


def _sample(message: AgentMessage, now: datetime) -> MachineUsage | None:
    """Return the usage sample, dated at most `now`: a sample dated in the future would supersede all later samples."""
    usage = _usage_of(message)
    if usage is None or (seconds(usage.observed_at) or math.inf) <= now.timestamp():
        return usage
    return _replace(usage, observed_at=rfc3339(now))


def _confirm_sources(row: NodeFacts, now: str) -> dict[str, tuple[msgspec.Struct, ...]]:
    words = {fact: said.text for fact, all_said in row.claims.items() for said in all_said if _is_agents(said)}
    return record_claim(row.claims, AGENT, words, now)  # type: ignore[return-value]


def _is_agents(said: object) -> bool:
    return bool(getattr(said, "source", "") == AGENT and getattr(said, "current", False))


def _write_facts(node: Node, message: AgentMessage, report: AgentReport, started: datetime) -> Node:
    """Write changed facts, under the cluster's lock."""
    with write_transaction():
        cluster = advance(node.cluster_id)
        node = Node.objects.select_related("cluster").get(pk=node.pk)
        now = timezone.now()
        row = NodeFacts.objects.select_for_update().filter(node=node).first() or new_facts(node)
        if _is_repeated(row, message, started, now):  # a later message may have been processed since
            return node
        first = row.reported is None
        row.reported = _replace(report, usage=None, pinned=None)
        row.digest = _digest(message)
        row.agent = report.agent[:100]
        row.pinned = report.pinned
        columns = ["reported", "digest", "agent", "pinned"]
        usage = _sample(message, now)
        if usage is not None:
            row.usage, row.usage_taken = usage, True
            columns += ["usage", "usage_taken"]
        for name, value in _message_columns(message, started, now).items():
            setattr(row, name, value)
            columns.append(name)
        write_facts(cluster, node, row, now, columns=columns, first=first)
    return node


def apply_samples(cluster_id: int) -> int:
    """Copy new usage samples of agents to the reports of their nodes in one transaction; return the number copied."""
    waiting = NodeFacts.objects.filter(node__cluster_id=cluster_id, usage_taken=False)
    if not waiting.exists():
        return 0
    with write_transaction():
        cluster = advance(cluster_id)
        now = timezone.now()
        changed = []
        # Mark the rows as copied before their samples are read. A sample that arrives in between resets the mark of its
        # row, so the next run copies it.
        taken = list(waiting.values_list("pk", flat=True))
        NodeFacts.objects.filter(pk__in=taken).update(usage_taken=True)
        rows = NodeFacts.objects.filter(pk__in=taken).select_related("node")
        for row in rows.only("usage", "collected", "node"):
            node, sample = row.node, mark_expired(usage_facts(row.usage, []), now)
            if measured_by(row.collected) is not None:
                continue  # a collector measures this node; samples of two sources are not comparable
            latest = newer(mark_expired(node.report.usage, now), sample)
            if latest is not None and latest != node.report.usage:
                set_usage(node, latest, now)
                node.sampled_revision = node.changed_revision = cluster.revision
                changed.append(node)
        write_columns(changed, SAMPLE_COLUMNS)
        cluster.inventory_revision = cluster.revision
        cluster.save(update_fields=["inventory_revision"])
    return len(changed)


def silent_since(now: datetime) -> datetime:
    """Return the cutoff time: an agent whose last message is older is considered silent."""
    return now - timedelta(seconds=3 * settings.HETSCHED_AGENT_REPORT_SECONDS)


def count_agents(cluster_id: int) -> dict[str, Any] | None:
    """Count the nodes with an agent and the nodes whose agent reported recently; return None if there is no agent.

    `doubted` is the number of nodes with quarantined facts, and `doubted_first` is the first such node by name.
    """
    rows = NodeFacts.objects.filter(node__cluster_id=cluster_id, reported_at__isnull=False)
    doubted = ~Q(quarantined=[])
    found = rows.aggregate(
        all=Count("pk"),
        reporting=Count("pk", filter=Q(reported_at__gte=silent_since(timezone.now()))),
        doubted=Count("pk", filter=doubted),
        doubted_first=Min("node__name", filter=doubted),
    )
    return found if found["all"] else None
