"""Shell completion of names on a server.

A completion never fails visibly: without a server, without a right, or after a timeout, it offers nothing. The server
and the token are those of the command line typed so far, else of the environment. Shells evaluate completions, so names
that would need quoting are left out, and descriptions contain plain characters only.
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


def offered(
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


def _offer(address: str, key: str, *about: str) -> Offer:
    def offer(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        return offered(context, address, key, about, incomplete)

    return offer


a_workload = _offer("workloads/", "id", "name", "state")
a_decision = _offer("decisions/", "id", "pod", "verdict")
a_cluster = _offer("clusters/", "name", "kind")
a_policy = _offer("policies/", "name", "description")
a_node = _offer("nodes/", "name", "isa")
a_hold = _offer("holds/", "id", "state", "note")
a_delivery = _offer("deliveries/", "id", "event", "state")
a_webhook = _offer("webhooks/", "id", "name")


_OFFERS = {
    "workloads": a_workload, "decisions": a_decision, "clusters": a_cluster, "policies": a_policy, "nodes": a_node,
    "plugins": _offer("plugins/", "name", "summary"), "holds": a_hold, "deliveries": a_delivery, "webhooks": a_webhook,
}  # fmt: skip


def a_kind(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the kinds that `get` supports."""
    return [kind.name for kind in KINDS if kind.name.startswith(incomplete)]


def a_name(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Offer the names of the typed kind."""
    try:
        offer = _OFFERS.get(kind_of(context.params.get("kind") or "").name)
    except InputError:
        return []
    return offer(context, incomplete) if offer else []
