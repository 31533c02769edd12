"""Notifications about workloads: their content and their recipients.

A callback URL in a request could make the server call an arbitrary host (SSRF).
Only hosts that the deployment names (`HETSCHED_CALLBACK_HOSTS`, as host or host:port) are called;
`hetsched.adapters.http.outbound` checks the URL when it is submitted and again in each call. Each change of a
workload's state, except to *pending*, creates one delivery for the callback URL of its submission and one for every
matching webhook, in the same transaction.
Invariant: deliveries exist for exactly the state changes that were committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.db import connection
from django.db.models import Q

from hetsched.adapters.http.outbound import AllowedHosts, OutboundError, check
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.inventory.models import Cluster
from hetsched.storage.bulk_rows import insert, new

from .. import dispatch
from ..lifecycle import State
from ..models import Delivery, Webhook, Workload


def allowed_hosts() -> AllowedHosts:
    """Return the hosts to which the deployment allows callbacks."""
    hosts = frozenset(settings.HETSCHED_CALLBACK_HOSTS) - {"*"}
    return AllowedHosts(hosts, hosts)


def check_callback_url(url: str, place: str = "callbackUrl") -> None:
    """Reject a URL that the server would never call.

    Raises: InputError `CallbackNotAllowed`.
    """
    try:
        if url:
            check(url, allowed_hosts())
    except OutboundError:
        raise InputError(
            "CallbackNotAllowed",
            Message("this server is not allowed to call {host}", host=repr(host_of(url))),
            place=place,
            hint="Add the host to HETSCHED_CALLBACK_HOSTS of the server",
        ) from None


def host_of(url: str) -> str:
    """Return the host and port of a URL, without credentials, or an empty string if the URL is invalid."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower()[:300]
    except ValueError:
        return ""


def enqueue_deliveries(cluster: Cluster, workloads: Sequence[Workload], now: datetime, *, has_webhooks: bool) -> None:
    """Write deliveries for workloads with a changed state, inside the transaction of the change.

    `has_webhooks` is True if a webhook of the cluster, or of all clusters, is enabled.
    """
    news = [workload for workload in workloads if workload.state != State.PENDING.value]
    if not news:
        return
    enabled = _enabled_webhooks(cluster) if has_webhooks else []
    hooks = [hook for hook in enabled if any(_is_for(hook, workload) for workload in news)]
    kept = _lock_webhooks(hook.pk for hook in hooks)
    rows = []
    for workload in news:
        wanted = [hook for hook in hooks if hook.pk in kept and _is_for(hook, workload)]
        if not (wanted or workload.callback_url):
            continue
        event, body = f"workload.{workload.state}", encode(event_document(cluster, workload)).decode()
        about = {"workload": workload.pk, "namespace": workload.namespace}
        if workload.callback_url:
            rows.append(build_delivery(workload.callback_url, event, body, now, owner=workload.owner, **about))
        rows += [
            build_delivery(hook.url, event, body, now, owner=hook.owner, webhook_id=hook.pk, **about) for hook in wanted
        ]
    insert(rows)
    wake_worker(rows)


def _enabled_webhooks(cluster: Cluster) -> list[Webhook]:
    return list(Webhook.objects.filter(Q(cluster=None) | Q(cluster=cluster), enabled=True).order_by("id"))


def _lock_webhooks(hook_ids: Iterable[str]) -> set[str]:
    """Return the webhooks that still exist, and lock them against deletion until the transaction ends.

    If a webhook was removed concurrently, the foreign key of its delivery would fail the whole transaction.
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
    """Return True if a webhook covers a workload; a namespace filter excludes workloads in several namespaces."""
    if hook.states and workload.state not in hook.states:
        return False
    return not hook.namespaces or workload.namespace in hook.namespaces


def event_document(cluster: Cluster, workload: Workload) -> dict[str, Any]:
    """Return the body of a notification: the state change and the path of the workload."""
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


def build_delivery(url: str, event: str, body: str, now: datetime, **columns: Any) -> Delivery:
    """Return an unsaved delivery that is due immediately."""
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


def wake_worker(rows: Iterable[Delivery]) -> None:
    """Wake the callback workers for the hosts of these deliveries once the transaction is committed."""
    for host in dict.fromkeys(row.host for row in rows):
        dispatch.wake(host, dispatch.CALLBACK)
