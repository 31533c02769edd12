"""Review decisions of operators on node facts: approve or reject a quarantined fact, or override a fact until a time.

Every decision requires a reason and is recorded in the audit trail. It is applied under the cluster's lock, like every
change.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec
from django.utils import timezone

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.facts import Override
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.times import rfc3339
from hetsched.journal.audit import Actor, record
from hetsched.storage.write_lock import write_transaction

from .actions import node_unknown_error, require_reason
from .facts import audit_name, new_facts, write_facts
from .models import Cluster, Node
from .models.node_facts import NodeFacts
from .node_loads import advance
from .overrides import read_override

_replace = msgspec.structs.replace
# Called with a node and its report after the approval; raises if pods use resources that the report no longer contains.
Check = Callable[[Node, NodeReport], None]


def approve(
    cluster: Cluster, node_name: str, fact: str, *, actor: Actor, reason: str, check: Check | None = None
) -> Node:
    """Accept the reported value of a quarantined fact.

    GPUs, zones and amounts that the report no longer contains are removed from the node; additional ones become
    available.
    Raises: InputError `NodeUnknown`, `ReasonMissing`, `FactUnknown`, or the errors of `check`.
    """
    return _rule(cluster, node_name, fact, "approve", actor, reason, check)


def reject(cluster: Cluster, node_name: str, fact: str, *, actor: Actor, reason: str) -> Node:
    """Reject the reported value of a quarantined fact: the previous value stays in effect until a different report.

    Raises: InputError `NodeUnknown`, `ReasonMissing`, `FactUnknown`.
    """
    return _rule(cluster, node_name, fact, "reject", actor, reason, None)


def _rule(
    cluster: Cluster, node_name: str, fact: str, verdict: str, actor: Actor, reason: str, check: Check | None
) -> Node:
    reason = require_reason(reason)
    with write_transaction():
        locked = advance(cluster.pk)
        node, row = _find(locked, node_name)
        item = next((item for item in row.quarantined if item.id == fact), None) if row is not None else None
        if row is None or item is None:
            message = Message("fact {fact} of {node} is not in quarantine", fact=repr(fact[:40]), node=node_name[:80])
            raise InputError("FactUnknown", message, place="fact")
        approved = [item.id] if verdict == "approve" else []
        if verdict == "reject":
            row.quarantined = tuple(
                _replace(other, state="rejected") if other is item else other for other in row.quarantined
            )
        write_facts(locked, node, row, timezone.now(), approved=approved)
        if check is not None:
            check(node, row.known)
        details = {
            "fact": item.fact,
            "item": item.item,
            "change": item.change,
            "known": item.known,
            "told": item.reported,
        }
        record(
            actor=actor.name, role=actor.role, action=f"node.{verdict}", obj=audit_name(locked, node), reason=reason,
            details=details,
        )  # fmt: skip
    return node


def override(
    cluster: Cluster,
    node_name: str,
    fact: str,
    value: str | None,
    until: str | None,
    *,
    actor: Actor,
    reason: str,
    action: str = "node.override",
) -> Node:
    """Override a fact of a node until a time, with priority over every source. The value None removes the override.

    `action` is the action name of the audit entry.

    Raises: InputError `NodeUnknown`, `ReasonMissing`, `FactUnknown`, `FactInvalid`, `ExpiryInvalid`.
    """
    reason = require_reason(reason)
    now = timezone.now()
    with write_transaction():
        locked = advance(cluster.pk)
        node, row = _find(locked, node_name)
        row = row or new_facts(node)
        before = next((item.value for item in row.overrides if item.fact == fact), None)
        kept = tuple(item for item in row.overrides if item.fact != fact)
        if value is not None:
            ends = _expiry(until, now)
            read_override(node.report, fact, value)
            kept = (*kept, Override(fact, value, ends, rfc3339(now), actor.name, reason))
        elif kept == row.overrides:
            message = Message("fact {text} is not overridden", text=repr(fact[:80]))
            raise InputError("FactUnknown", message, place="fact")
        row.overrides = kept
        write_facts(locked, node, row, now)
        details = {"fact": fact, "before": before, "value": value, "until": until}
        record(
            actor=actor.name, role=actor.role, action=action, obj=audit_name(locked, node), reason=reason,
            details=details,
        )  # fmt: skip
    return node


def _expiry(until: str | None, now: datetime) -> str:
    try:
        moment = datetime.fromisoformat(until or "")
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or not now < moment <= now + timedelta(days=365):
        message = "the value must be an RFC 3339 time between now and one year from now"
        raise InputError("ExpiryInvalid", message, place="until")
    return rfc3339(moment)


def _find(cluster: Cluster, node_name: str) -> tuple[Node, NodeFacts | None]:
    node = Node.objects.select_related("cluster").filter(cluster=cluster, name=node_name).first()
    if node is None:
        raise node_unknown_error(cluster, node_name)
    return node, NodeFacts.objects.filter(node=node).first()


def end_overrides(cluster_id: int) -> int:
    """Remove expired overrides and return the number of affected nodes."""
    now = timezone.now()
    rows = NodeFacts.objects.filter(node__cluster_id=cluster_id).exclude(overrides=[])
    over = [row.pk for row in rows.only("overrides") if any(item.until <= rfc3339(now) for item in row.overrides)]
    for pk in over:
        with write_transaction():
            cluster = advance(cluster_id)
            node = Node.objects.select_related("cluster").get(pk=pk)
            write_facts(cluster, node, NodeFacts.objects.get(pk=pk), now)
    return len(over)
