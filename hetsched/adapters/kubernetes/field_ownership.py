"""Field managers of an object, from `metadata.managedFields`.

`managedFields` lists for each manager the fields that it set last; a field that two managers set to the same value
belongs to both. Server-side apply under our manager name keeps our fields apart from those of other managers.
Source: Kubernetes documentation, "Server-Side Apply", section Field management.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Plain = Mapping[str, Any]


def owners(obj: Plain, *path: str) -> dict[str, set[str]]:
    """Return the managers of each key of the mapping at `path`."""
    found: dict[str, set[str]] = {}
    for entry in _entries(obj):
        for key in _at(entry, path):
            found.setdefault(key, set()).add(str(entry.get("manager", "")))
    return found


def applied(obj: Plain, manager: str, *path: str, part: str = "") -> set[str]:
    """Return the keys of the mapping at `path` that `manager` applied to the object or to subresource `part`."""
    return {
        key
        for entry in _entries(obj)
        if entry.get("manager") == manager
        and entry.get("operation") == "Apply"
        and entry.get("subresource", "") == part
        for key in _at(entry, path)
    }


def managers(obj: Plain) -> list[str]:
    """Return the names of all field managers of an object."""
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
