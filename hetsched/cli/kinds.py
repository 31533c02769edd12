"""Kinds of objects that `hetsched get` lists, and their names."""

from __future__ import annotations

import difflib
from typing import NamedTuple

from hetsched.contracts.errors import InputError


class Kind(NamedTuple):
    """List of REST: its address, the columns of its table; `whole` if it has no pages.

    `address` is set if it differs from the name.
    """

    name: str
    columns: tuple[str, ...]
    also: tuple[str, ...] = ()
    whole: bool = False
    address: str = ""

    @property
    def path(self) -> str:
        return self.address or f"{self.name}/"


KINDS = (
    Kind(
        "clusters",
        ("name", "kind", "policy", "nodeCount", "readyCount", "cardCount", "cpu", "memory", "gpu"),
        ("cluster",),
    ),
    Kind(
        "nodes",
        ("name", "family", "isa", "pool", "ready", "cordoned", "cpu", "memory", "gpu", "cards", "pods"),
        ("node", "no"),
    ),
    Kind(
        "workloads",
        ("id", "cluster", "namespace", "name", "state", "podCount", "priority", "createdAt"),
        ("workload", "wl"),
    ),
    Kind(
        "decisions",
        ("id", "pod", "verdict", "node", "policy", "score", "createdAt", "summary"),
        ("decision", "dec"),
    ),
    Kind("policies", ("name", "activeVersion", "description"), ("policy", "pol")),
    Kind("plugins", ("name", "points", "summary"), ("plugin",), whole=True),
    Kind(
        "queue", ("position", "standing", "pod", "priority", "gang", "policy", "state", "attempts", "workload"), ("q",)
    ),
    Kind(
        "headroom", ("asks", "pool", "fits", "emulated", "reason"), ("room",), whole=True, address="metrics/headroom/"
    ),
    Kind(
        "holds",
        ("id", "cluster", "namespace", "state", "podCount", "heldBy", "note", "expiresAt", "workload"),
        ("hold",),
    ),
    Kind("deliveries", ("id", "event", "workload", "state", "attempts", "status", "code", "url"), ("delivery",)),
    Kind("webhooks", ("id", "name", "url", "enabled", "states", "namespaces", "pausedBecause"), ("webhook",)),
    Kind("tokens", ("key", "name", "role", "namespaces", "expires", "lastUsedAt"), ("token",)),
    Kind("audit", ("id", "at", "actor", "action", "objectKind", "objectName", "reason")),
    Kind("policy-plans", ("name", "policy", "state", "enabled", "note"), ("policy-plan",)),
    Kind("golden-placements", ("name", "cluster", "policy", "state", "expected"), ("golden-placement", "golden")),
)
_BY_NAME = {name: kind for kind in KINDS for name in (kind.name, *kind.also)}


def known() -> str:
    """Return the names of all kinds as text."""
    return ", ".join(kind.name for kind in KINDS)


def kind_of(name: str) -> Kind:
    """Return the kind of this name.

    Raises: InputError `OptionInvalid`.
    """
    found = _BY_NAME.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), _BY_NAME, n=1)
        hint = f"Did you mean {_BY_NAME[near[0]].name}? " if near else ""
        raise InputError("OptionInvalid", f"there is no kind {name!r}", place="KIND", hint=f"{hint}Known: {known()}")
    return found
