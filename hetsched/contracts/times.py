"""Moments as text: RFC 3339 in UTC, written in one way wherever a document holds one."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(moment: datetime) -> str:
    """Write an aware moment as `2026-11-20T10:00:00.123456Z`."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def seconds(text: str) -> float | None:
    """Return an RFC 3339 moment as seconds since 1970, None where it cannot be read as one."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None
