"""Kubernetes objects as plain data."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def made(api_version: str, kind: str, name: str, namespace: str = "", labels: dict[str, str] | None = None) -> Object:
    """Return an object with these metadata and no other fields."""
    meta: Object = {"name": name}
    if namespace:
        meta["namespace"] = namespace
    if labels:
        meta["labels"] = dict(labels)
    return {"apiVersion": api_version, "kind": kind, "metadata": meta}
