"""Who keeps which field of an object, as the API server writes it down.

Rule: `metadata.managedFields` names for each manager the fields that it set last; a field that two set to the same
value has both. Server-side apply under a name of ours keeps our fields apart from everybody else's.
Source: Kubernetes documentation, "Server-Side Apply", section Field management.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Plain = Mapping[str, Any]


def owners(obj: Plain, *path: str) -> dict[str, set[str]]:
    """Return for each key of the mapping at `path` who keeps it."""
    found: dict[str, set[str]] = {}
    for entry in _entries(obj):
        for key in _at(entry, path):
            found.setdefault(key, set()).add(str(entry.get("manager", "")))
    return found


def applied(obj: Plain, manager: str, *path: str, part: str = "") -> set[str]:
    """Return the keys of the mapping at `path` that a manager keeps by applying the object, or a part of it."""
    return {
        key
        for entry in _entries(obj)
        if entry.get("manager") == manager
        and entry.get("operation") == "Apply"
        and entry.get("subresource", "") == part
        for key in _at(entry, path)
    }


def managers(obj: Plain) -> list[str]:
    """Return everybody who set something of an object, by name."""
    return sorted({str(entry.get("manager", "")) for entry in _entries(obj)} - {""})


def _entries(obj: Plain) -> Iterator[Plain]:
    for entry in obj.get("metadata", {}).get("managedFields") or ():
        if isinstance(entry, dict):
            yield entry


def _at(entry: Plain, path: tuple[str, ...]) -> set[str]:
    fields: Any = entry.get("fieldsV1")
    for step in path:
        fields = fields.get(f"f:{step}") if isinstance(fields, dict) else None
    return {key[2:] for key in fields if key.startswith("f:")} if isinstance(fields, dict) else set()
