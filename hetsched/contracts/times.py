"""Times as text: RFC 3339 in UTC, in the same format in every document."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(moment: datetime) -> str:
    """Return an aware datetime as `2026-11-20T10:00:00.123456Z`."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def seconds(text: str) -> float | None:
    """Return an RFC 3339 time as seconds since 1970, None if it cannot be parsed."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None
