"""Expiry of measured usage samples, by the server's clock.

A sample older than `STALE_SECONDS` is marked stale, whatever its source; requests are used instead. The samples of a
collector live as long as the collector allows, if that is longer. A sample that is dated further in the future than its
lifetime is also marked stale, because its age is unknown and it would not expire in time. A sample without a readable
time stays as it is. `Node.sample_due_at` is the time at which the node's sample must be checked next, or None if the
node has no sample that can expire. The engine has no clock, so the stale mark is part of the report that decisions and
exports use.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from hetsched.contracts.objects.node_report import NodeReport, Usage
from hetsched.contracts.times import seconds
from hetsched.engine.cluster.samples import STALE_SECONDS

from .models import Node

SAMPLE_COLUMNS = ("report", "sample_due_at", "changed_revision", "sampled_revision")
_replace = msgspec.structs.replace


def seconds_left(usage: Usage | None, now: datetime, limits: Mapping[str, float] | None = None) -> float | None:
    """Return the remaining lifetime of a sample in seconds: negative if it has expired, None if it cannot expire.

    `limits` maps sources to lifetimes in seconds where these differ from `STALE_SECONDS`.
    """
    if usage is None or usage.stale:
        return None
    taken = seconds(usage.observed_at)
    if taken is None:
        return None
    lifetime, age = (limits or {}).get(usage.source, STALE_SECONDS), now.timestamp() - taken
    return lifetime - age if age >= -lifetime else -1.0


def mark_expired(usage: Usage | None, now: datetime, limits: Mapping[str, float] | None = None) -> Usage | None:
    """Return the sample, marked as stale if it has expired."""
    remaining = seconds_left(usage, now, limits)
    return _replace(usage, stale=True) if usage is not None and remaining is not None and remaining < 0 else usage


def mark_expired_report(report: NodeReport, now: datetime) -> NodeReport:
    """Return the report, with its usage sample marked as stale if the sample has expired."""
    usage = mark_expired(report.usage, now)
    return report if usage is report.usage else _replace(report, usage=usage)


def due_at(usage: Usage | None, now: datetime, limits: Mapping[str, float] | None = None) -> datetime | None:
    """Return the time when a sample expires (`now` if it has expired), or None if it cannot expire."""
    remaining = seconds_left(usage, now, limits)
    return None if remaining is None else now + timedelta(seconds=max(remaining, 0.0))


def set_usage(node: Node, usage: Usage | None, now: datetime, limits: Mapping[str, float] | None = None) -> None:
    """Set the usage sample in a node's report, and the sample's expiry time, without saving."""
    node.report = _replace(node.report, usage=usage)
    node.sample_due_at = due_at(usage, now, limits)
