"""Kinds of objects that `hetsched get` lists, and their names."""

from __future__ import annotations

import difflib
from typing import NamedTuple

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, as_message


class ResourceList(NamedTuple):
    """List endpoint of the REST API and the columns of its table.

    `also` lists other names of the kind. `address` is the path of the list if it differs from the name. `whole`
    means that the list is not paginated.
    """

    name: str
    columns: tuple[str, ...]
    also: tuple[str, ...] = ()
    whole: bool = False
    address: str = ""

    @property
    def path(self) -> str:
        return self.address or f"{self.name}/"


_LISTED = " lists the existing objects"
KINDS = (
    ResourceList(
        "clusters",
        ("name", "kind", "policy", "nodeCount", "readyCount", "cardCount", "cpu", "memory", "gpu"),
        ("cluster",),
    ),
    ResourceList(
        "nodes",
        ("name", "family", "isa", "pool", "ready", "cordoned", "cpu", "memory", "gpu", "cards", "pods"),
        ("node", "no"),
    ),
    ResourceList(
        "workloads",
        ("id", "cluster", "namespace", "name", "state", "podCount", "priority", "createdAt"),
        ("workload", "wl"),
    ),
    ResourceList(
        "decisions",
        ("id", "pod", "verdict", "node", "policy", "score", "createdAt", "summary"),
        ("decision", "dec"),
    ),
    ResourceList("policies", ("name", "activeVersion", "description"), ("policy", "pol")),
    ResourceList("plugins", ("name", "points", "summary"), ("plugin",), whole=True),
    ResourceList(
        "queue", ("position", "standing", "pod", "priority", "gang", "policy", "state", "attempts", "workload"), ("q",)
    ),
    ResourceList(
        "headroom", ("asks", "pool", "fits", "emulated", "reason"), ("room",), whole=True, address="metrics/headroom/"
    ),
    ResourceList(
        "holds",
        ("id", "cluster", "namespace", "state", "podCount", "heldBy", "note", "expiresAt", "workload"),
        ("hold",),
    ),
    ResourceList(
        "deliveries", ("id", "event", "workload", "state", "attempts", "status", "code", "url"), ("delivery",)
    ),
    ResourceList("webhooks", ("id", "name", "url", "enabled", "states", "namespaces", "pausedBecause"), ("webhook",)),
    ResourceList("tokens", ("key", "name", "role", "namespaces", "expires", "lastUsedAt"), ("token",)),
    ResourceList("audit", ("id", "at", "actor", "action", "objectKind", "objectName", "reason")),
    ResourceList("policy-plans", ("name", "policy", "state", "enabled", "note"), ("policy-plan",)),
    ResourceList(
        "golden-placements", ("name", "cluster", "policy", "state", "expected"), ("golden-placement", "golden")
    ),
)
_BY_NAME = {name: kind for kind in KINDS for name in (kind.name, *kind.also)}


def kind_list() -> str:
    """Return the names of all kinds as text."""
    return ", ".join(kind.name for kind in KINDS)


def kind_of(name: str) -> ResourceList:
    """Return the kind with this name.

    Raises: InputError `OptionInvalid`.
    """
    found = _BY_NAME.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), _BY_NAME, n=1)
        hint = f"Did you mean {_BY_NAME[near[0]].name}? " if near else ""
        raise InputError("OptionInvalid", f"unknown kind {name!r}", place="KIND", hint=f"{hint}Known: {kind_list()}")
    return found


def command_hint(hint: Message) -> Message:
    """Return the hint of an error of the server, with the command that lists objects instead of the REST path."""
    name = next((kind.name for kind in KINDS if f"GET {kind.path}{_LISTED}" == hint), "")
    return as_message(f"hetsched get {name}{_LISTED}") if name else hint
