"""Tell others how workloads fare: what is to be told, and to whom.

Problem: an address in a request makes the server call hosts of the caller's choice.
Rule: only hosts that the deployment names (`HETSCHED_CALLBACK_HOSTS`, as host or host:port) are ever called, by the
guard of `hetsched.adapters.http.outbound`: checked when the address is given and again in each call. Each change of a
workload's state but to *pending* is one delivery for the address that its submission gave, and one for every webhook
that is for it, written in the same transaction.
Invariant: no change is told that did not happen, and none that is to be told is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec
from django.conf import settings
from django.db import connection
from django.db.models import Q

from hetsched.adapters.http.outbound import Allowed, Refused, check
from hetsched.contracts.errors import InputError
from hetsched.inventory.models import Cluster
from hetsched.storage.bulk_rows import insert, new
from hetsched.storage.prepared_queries import Given, Prepared

from . import dispatch
from .lifecycle import State
from .models import Delivery, Webhook, Workload


def allowed() -> Allowed:
    """Return whom the deployment lets us tell."""
    hosts = frozenset(settings.HETSCHED_CALLBACK_HOSTS) - {"*"}
    return Allowed(hosts, hosts)


def refuse_foreign(url: str, place: str = "callbackUrl") -> None:
    """Refuse an address that we would never call.

    Raises: InputError `CallbackNotAllowed`.
    """
    try:
        if url:
            check(url, allowed())
    except Refused:
        raise InputError(
            "CallbackNotAllowed",
            f"this server does not call {host_of(url)!r}",
            place=place,
            hint="Its operator lists the hosts it may call in HETSCHED_CALLBACK_HOSTS",
        ) from None


def host_of(url: str) -> str:
    """Return the host of an address and its port, without what else may stand there."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower()[:300]
    except ValueError:
        return ""


_HOOKS = Prepared(
    lambda: Webhook.objects.filter(Q(cluster=None) | Q(cluster_id=Given("cluster")), enabled=True).order_by("id")
)


def announce(cluster: Cluster, workloads: Sequence[Workload], now: datetime) -> None:
    """Write what is to be told of workloads whose state changed, inside the transaction of the change."""
    news = [workload for workload in workloads if workload.state != State.PENDING.value]
    if not news:
        return
    hooks = [hook for hook in _HOOKS(cluster=cluster.pk) if any(_is_for(hook, workload) for workload in news)]
    kept = _kept(hook.pk for hook in hooks)
    rows = []
    for workload in news:
        wanted = [hook for hook in hooks if hook.pk in kept and _is_for(hook, workload)]
        if not (wanted or workload.callback_url):
            continue
        event, body = f"workload.{workload.state}", msgspec.json.encode(message(cluster, workload)).decode()
        about = {"workload": workload.pk, "namespace": workload.namespace}
        if workload.callback_url:
            rows.append(delivery(workload.callback_url, event, body, now, owner=workload.owner, **about))
        rows += [delivery(hook.url, event, body, now, owner=hook.owner, webhook_id=hook.pk, **about) for hook in wanted]
    insert(rows)
    wake(rows)


def _kept(hook_ids: Iterable[str]) -> set[str]:
    """Return those webhooks that are not removed by now, and keep them until the transaction ends.

    One that somebody removes meanwhile would fail the whole transaction: its deliveries name it.
    """
    ids = list(hook_ids)
    if not ids:
        return set()
    table, marks = Webhook._meta.db_table, ", ".join(["%s"] * len(ids))
    kept = " ORDER BY id FOR KEY SHARE" if connection.vendor == "postgresql" else ""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {table} WHERE id IN ({marks}){kept}", ids)  # noqa: S608
        return {hook_id for (hook_id,) in cursor.fetchall()}


def _is_for(hook: Webhook, workload: Workload) -> bool:
    """Say whether a webhook tells of a workload; one of several namespaces is none of a webhook that is limited."""
    if hook.states and workload.state not in hook.states:
        return False
    return not hook.namespaces or workload.namespace in hook.namespaces


def message(cluster: Cluster, workload: Workload) -> dict[str, Any]:
    """Return what is told: enough to know what happened, and where to look."""
    (state, at), before = workload.history[-1], workload.history[-2:-1]
    return {
        "type": f"workload.{state}",
        "timestamp": at,
        "id": workload.pk,
        "name": workload.name,
        "namespace": workload.namespace,
        "cluster": cluster.name,
        "state": state,
        "previousState": before[0][0] if before else None,
        "revision": workload.revision,
        "at": at,
        "path": f"/api/v1/workloads/{workload.pk}/",
    }


def delivery(url: str, event: str, body: str, now: datetime, **columns: Any) -> Delivery:
    """Return a message that is due, unsaved."""
    return new(
        Delivery,
        url=url,
        host=host_of(url),
        event=event,
        body=body,
        not_before=now,
        began_at=now,
        created_at=now,
        **columns,
    )


def wake(rows: Iterable[Delivery]) -> None:
    """Have those hosts told once the transaction is committed."""
    for host in dict.fromkeys(row.host for row in rows):
        dispatch.wake(host, dispatch.CALLBACK)
