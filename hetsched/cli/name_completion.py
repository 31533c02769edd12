"""Shell completion of names on a server.

A completion never shows an error: without a server, without permission, or after a timeout, it offers no names. It uses
the server and the token from the command line typed so far, or else from the environment. Shells evaluate completions,
so names that would need quoting are omitted, and descriptions contain only plain characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import typer

from hetsched.contracts.errors import InputError

from .client import DEFAULT_SERVER, ServerUnavailable
from .kinds import KINDS, kind_of

Offer = Callable[[typer.Context, str], list[tuple[str, str]]]

_PLAIN_NAME = re.compile(r"[A-Za-z0-9._@/-]+")
_ODD = re.compile(r"[^A-Za-z0-9._@/,-]+")
_MOST = 200
_TIMEOUT_SECONDS = 2.0


def complete(
    context: typer.Context, address: str, key: str, about: tuple[str, ...], begun: str
) -> list[tuple[str, str]]:
    """Return the names of a list with the typed prefix, each with a short description."""
    try:
        return [found for found in _rows(context, address, key, about) if found[0].startswith(begun)]
    except (ServerUnavailable, InputError, LookupError, TypeError, ValueError):
        return []


def _rows(context: typer.Context, address: str, key: str, about: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    from hetsched.client import Client

    given = context.params
    server, token = given.get("server") or DEFAULT_SERVER, given.get("token") or ""
    query = {"cluster": given["cluster"]} if given.get("cluster") and address == "nodes/" else {}
    with Client(server, token, patience_seconds=0, timeout_seconds=_TIMEOUT_SECONDS, attempts=1) as client:
        for row in client.items(address, most=_MOST, **query):
            name, words = str(row[key]), (str(row[field] or "") for field in about)
            if _PLAIN_NAME.fullmatch(name):
                yield name, _ODD.sub(" ", " ".join(words)).strip()


def _completer(address: str, key: str, *about: str) -> Offer:
    def offer(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        return complete(context, address, key, about, incomplete)

    return offer


complete_workload = _completer("workloads/", "id", "name", "state")
complete_decision = _completer("decisions/", "id", "pod", "verdict")
complete_cluster = _completer("clusters/", "name", "kind")
complete_policy = _completer("policies/", "name", "description")
complete_node = _completer("nodes/", "name", "isa")
complete_hold = _completer("holds/", "id", "state", "note")
complete_delivery = _completer("deliveries/", "id", "event", "state")
complete_webhook = _completer("webhooks/", "id", "name")


_OFFERS = {
    "workloads": complete_workload,
    "decisions": complete_decision,
    "clusters": complete_cluster,
    "policies": complete_policy,
    "nodes": complete_node,
    "plugins": _completer("plugins/", "name", "summary"),
    "holds": complete_hold,
    "deliveries": complete_delivery,
    "webhooks": complete_webhook,
}


def complete_kind(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the kinds that `get` supports."""
    return [kind.name for kind in KINDS if kind.name.startswith(incomplete)]


def complete_name(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Offer the names of objects of the typed kind."""
    try:
        offer = _OFFERS.get(kind_of(context.params.get("kind") or "").name)
    except InputError:
        return []
    return offer(context, incomplete) if offer else []
