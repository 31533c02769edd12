"""Concurrent REST requests of many senders, each in its own thread and transaction of this process.

Every function creates its objects, starts the senders together and returns the count of each response, so that a test
can assert exact numbers. `die` runs in a separate process, which is killed during a request.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

_POD = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "race"},
    "spec": {"containers": [{"name": "main", "image": "job:1", "resources": {"requests": {"cpu": "1m"}}}]},
}  # fmt: skip


def race_key(cluster: str, key: str, threads: int, *, both: bool = False) -> dict[str, Any]:
    """Submit concurrently with one key; with `both`, every second sender uses another body. Count responses and
    workloads.
    """
    from hetsched.placement.models import Workload

    ask, before = _client(), Workload.objects.count()

    def attempt(number: int) -> tuple[int, dict[str, Any]]:
        pod = _pod(f"{key}-{number % 2 if both else 0}")
        return ask("workloads/", {"manifest": pod, "cluster": cluster}, key)

    given = _race(attempt, threads)
    ids = {body["id"] for status, body in given if status == 202}
    return {**_counted(given), "ids": len(ids), "workloads": Workload.objects.count() - before}


def race_batch(cluster: str, key: str, threads: int) -> dict[str, Any]:
    """Send the same batch with one key concurrently; count responses and workloads."""
    from hetsched.placement.models import Workload

    ask, before = _client(), Workload.objects.count()
    items = [{"manifest": _pod(f"{key}-{number}")} for number in range(5)]
    given = _race(lambda _: ask("submissions/", {"items": items, "cluster": cluster}, key), threads)
    ids = {item["id"] for status, body in given if status == 202 for item in body["items"]}
    return {**_counted(given), "ids": len(ids), "workloads": Workload.objects.count() - before}


def race_claim(cluster: str, key: str, threads: int) -> dict[str, Any]:
    """Claim one hold by different submissions while the sweep ends expired holds; count the responses."""
    ask = _client()
    hold = ask("holds/", {"manifest": _pod(f"{key}-h"), "cluster": cluster, "seconds": 600})[1]["id"]
    wish = {"cluster": cluster, "hold": hold}
    return _counted(_race(lambda n: ask("workloads/", {"manifest": _pod(f"{key}-{n}"), **wish}), threads))


def race_end(cluster: str, key: str, threads: int) -> dict[str, Any]:
    """Claim a hold with half of the senders while the other half cancels it; return the final state."""
    from hetsched.inventory.models import Cluster
    from hetsched.journal.audit import SYSTEM
    from hetsched.placement import actions
    from hetsched.placement.models import Hold, Pod, Workload

    ask = _client()
    hold = ask("holds/", {"manifest": _pod(f"{key}-h"), "cluster": cluster})[1]["id"]

    def attempt(number: int) -> tuple[int, dict[str, Any]]:
        if number % 2:
            return ask("workloads/", {"manifest": _pod(f"{key}-{number}"), "cluster": cluster, "hold": hold})
        try:
            actions.cancel_hold(Hold.objects.get(pk=hold), actor=SYSTEM, reason="a test")
        except actions.Conflict:
            return 409, {}
        except Exception as error:
            return (409, {}) if getattr(error, "code", "") == "HoldClaimed" else (500, {"code": repr(error)})
        return 200, {}

    given = _race(attempt, threads)
    row = Hold.objects.get(pk=hold)
    held = Pod.objects.filter(hold=hold, origin=Pod.HELD, state="running").count()
    named = Workload.objects.filter(cluster=Cluster.objects.get(name=cluster), name__startswith=f"{key}-").count()
    return {"state": row.state, "held": held, "submitted": named, "failed": sum(s >= 500 for s, _ in given)}


def race_most(cluster: str, other: str, key: str, threads: int) -> dict[str, Any]:
    """Create one small hold per sender, on two clusters, for one owner with a lower limit of holds; count the
    responses.
    """
    ask = _client()

    def attempt(number: int) -> tuple[int, dict[str, Any]]:
        wish = {"manifest": _pod(key), "cluster": other if number % 2 else cluster}
        return _send_with_retries(lambda: ask("holds/", wish))

    return _counted(_race(attempt, threads))


def race_room(cluster: str, key: str, threads: int) -> dict[str, Any]:
    """Hold a whole GPU per sender, with fewer GPUs than senders; count the responses."""
    ask = _client()
    pod = _pod(key, **{"nvidia.com/gpu": "1"})
    return _counted(
        _race(lambda _: _send_with_retries(lambda: ask("holds/", {"manifest": pod, "cluster": cluster})), threads)
    )


def race_plan(cluster: str, key: str, threads: int) -> dict[str, Any]:
    """Submit one plan with many senders; count the responses."""
    ask = _client()
    wish = {"manifest": _pod(key), "cluster": cluster}
    plan = ask("what-if/", {**wish, "plan": True})[1]["plan"]["token"]
    return _counted(_race(lambda _: _send_with_retries(lambda: ask("workloads/", {**wish, "plan": plan})), threads))


def race_batches(cluster: str, key: str, threads: int) -> dict[str, Any]:
    """Send all-or-nothing batches with the same namespaces and keys in both orders; count responses and workloads."""
    from hetsched.placement.models import Workload

    ask, before = _client(), Workload.objects.count()

    def attempt(number: int) -> tuple[int, dict[str, Any]]:
        items = [
            {
                "manifest": _pod(f"{key}-{number}-{place}", namespace=f"{key}-{place}"),
                "key": f"{key}-{number // 2}-{place}",
            }
            for place in range(6)
        ]
        body = {"items": items[:: -1 if number % 2 else 1], "cluster": cluster, "allOrNothing": True}
        return ask("submissions/", body)

    given = _race(attempt, threads)
    return {**_counted(given), "workloads": Workload.objects.count() - before}


def race_webhooks(cluster: str, key: str, threads: int) -> dict[str, Any]:
    """Create one webhook per sender, for one owner with a lower limit of webhooks; count the responses."""
    from hetsched.placement.actions import webhooks

    webhooks.MOST_WEBHOOKS = 5
    ask = _client()
    hook = {"url": "http://ci.example/hook", "reason": "a test", "cluster": cluster}
    return _counted(_race(lambda number: ask("webhooks/", {**hook, "name": f"{key}-{number}"}), threads))


def holds_open() -> int:
    from hetsched.placement.models import Hold

    return Hold.objects.filter(state=Hold.HELD).count()


def cancel_holds() -> None:
    """Cancel every unclaimed hold."""
    from hetsched.journal.audit import SYSTEM
    from hetsched.placement import actions
    from hetsched.placement.models import Hold

    for row in Hold.objects.filter(state=Hold.HELD):
        actions.cancel_hold(row, actor=SYSTEM, reason="the round is over")


@lru_cache(maxsize=1)
def token() -> str:
    """Return the token of this process's requests."""
    from hetsched.access.tokens import create_token

    return create_token(role="operator", name="racer")[1]


def send(address: str, body: dict[str, Any], key: str) -> list[Any]:
    """Send one request; return its status and its document."""
    return [*_client()(address, body, key)]


def _counted(given: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    return {"answers": dict(sorted(Counter(_summary(*item) for item in given).items()))}


def _summary(status: int, body: dict[str, Any]) -> str:
    return f"{status} {body['code']}" if "code" in body else str(status)


def _send_with_retries(ask: Callable[[], tuple[int, dict[str, Any]]]) -> tuple[int, dict[str, Any]]:
    """Repeat a request while the server responds that it is busy, as clients should."""
    for _ in range(100):
        status, body = ask()
        if status != 503:
            break
    return status, body


def _pod(name: str, *, namespace: str = "race", **limits: str) -> dict[str, Any]:
    container = {**_POD["spec"]["containers"][0]}  # type: ignore[index]
    if limits:
        container["resources"] = {**container["resources"], "limits": limits}
    return {**_POD, "metadata": {"name": name, "namespace": namespace}, "spec": {"containers": [container]}}


def _client() -> Callable[..., tuple[int, dict[str, Any]]]:
    """Return a function that sends a request with a token through the whole web stack."""
    from django.test import Client

    text = token()

    def ask(address: str, body: dict[str, Any], key: str = "") -> tuple[int, dict[str, Any]]:
        headers = {"host": "localhost", "authorization": f"Bearer {text}", **({"idempotency-key": key} if key else {})}
        client = Client(headers=headers, raise_request_exception=False)
        answer = client.post(f"/api/v1/{address}", json.dumps(body), content_type="application/json")
        return answer.status_code, answer.json()

    return ask


def _race(work: Callable[[int], tuple[int, dict[str, Any]]], threads: int) -> list[tuple[int, dict[str, Any]]]:
    from tests.system.driver import in_threads

    given, errors = in_threads(work, threads)
    return [*given, *((599, {"code": error}) for error in errors)]


def die(when: str, address: str, body: str, key: str, text: str) -> None:
    """Send a request; the process is killed at the end of the transaction that stores the key: `inside` it, or `after`
    it.
    """
    import django

    django.setup()
    from django.db import connection
    from django.db.transaction import Atomic
    from django.test import Client

    answered: list[str] = []
    leave = Atomic.__exit__

    def watch(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if "INSERT INTO placement_idempotencykey" in sql.replace('"', ""):  # possibly with other rows
            answered.append(sql)
        return execute(sql, *rest)

    def left(self: Atomic, *error: Any) -> None:
        last = bool(answered) and not connection.savepoint_ids
        if last and when == "inside":
            os.kill(os.getpid(), signal.SIGKILL)
        leave(self, *error)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)

    Atomic.__exit__ = left  # type: ignore[method-assign]
    client = Client(headers={"host": "localhost", "authorization": f"Bearer {text}", "idempotency-key": key})
    with connection.execute_wrapper(watch):
        client.post(f"/api/v1/{address}", body, content_type="application/json")


HANDLERS = (
    race_key, race_batch, race_batches, race_webhooks, race_claim, race_end, race_most, race_room, race_plan,
    holds_open, cancel_holds, send, token,
)  # fmt: skip

if __name__ == "__main__":
    die(*sys.argv[1:])
