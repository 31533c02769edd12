"""Submissions from outside: a burst of many clients with retries, and a steady rate.

Every submission has its own idempotency key. A retry is the same request sent again, either at the same time on another
connection or after the response. After a 429 the client waits as long as `Retry-After` says. After a 503 or no response
it waits a second, like a client whose server was just killed. At the end the server's list is compared with the
submissions: a name that occurs twice was duplicated, and an accepted name that is missing was lost.

The steady rate is an open-loop load: each request is sent when it is due, however long the responses take, and its
latency is measured from that time. So the delay of a server that stops is measured for each request.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from datetime import datetime
from typing import Any

import msgspec

from .client import Answer, Connection, Server, pages
from .planes import CLUSTER

_POLL_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_MOST_REFUSALS = 50


class Submitted(msgspec.Struct):
    """The results of submissions, as the clients saw them and as the server lists them."""

    wanted: int
    answers: list[Answer] = []
    accepted: dict[str, set[str]] = {}  # by name: the IDs in the responses to clients
    due_at: dict[str, float] = {}
    began_at: float = 0.0
    accepted_seconds: float = 0.0
    decided_seconds: float | None = None
    to_decision_seconds: list[float] = []
    rows: list[dict[str, Any]] = []
    bare_refusals: int = 0  # 429 without Retry-After
    cancelled: int = 0

    @property
    def outcomes(self) -> dict[str, int]:
        return dict(sorted(Counter(answer.outcome for answer in self.answers).items()))

    @property
    def accepting_seconds(self) -> list[float]:
        return [answer.took_seconds for answer in self.answers if answer.status == 202]

    @property
    def lost(self) -> int:
        """Count the accepted submissions that the server does not list."""
        there = {row["name"] for row in self.rows}
        return len(self.accepted.keys() - there)

    @property
    def doubled(self) -> int:
        """Count the submissions that the server lists more than once, or for which clients received two IDs."""
        listed = Counter(row["name"] for row in self.rows)
        twice = {name for name, count in listed.items() if count > 1}
        return len(twice | {name for name, ids in self.accepted.items() if len(ids) > 1})

    @property
    def undecided(self) -> int:
        return sum(row["state"] == "pending" for row in self.rows)

    @property
    def replayed(self) -> int:
        """Count the responses that the server marks as a repetition of an earlier response."""
        return sum("idempotency-replayed" in answer.headers for answer in self.answers)


def request(name: str) -> dict[str, Any]:
    """Return the body that submits one pod of this name: half a CPU, 512 MiB."""
    resources = {"requests": {"cpu": "500m", "memory": "512Mi"}}
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "load"},
        "spec": {"containers": [{"name": "main", "image": "job:1", "resources": resources}]},
    }  # fmt: skip
    return {"manifest": pod, "cluster": CLUSTER}


async def burst(server: Server, count: int, clients: int, retries: float, *, prefix: str, patience: float) -> Submitted:
    """Submit as fast as `clients` can, a share of them twice; wait up to `patience` seconds until all are decided."""
    found = Submitted(count, began_at=time.time())
    dice = random.Random(prefix)  # fixed seed, so that every run is the same
    names = [f"{prefix}-{number}" for number in range(count)]
    again = set(dice.sample(names, round(count * retries)))
    waiting = iter(names)

    async def work(client: int) -> None:
        first, second = server.connection(), server.connection()
        for name in waiting:
            twins = [
                _persist(found, connection, name) for connection in ((first, second) if name in again else (first,))
            ]
            if client % 2:
                for twin in twins:
                    await twin
            else:
                await asyncio.gather(*twins)
        await asyncio.gather(first.close(), second.close())

    began = time.perf_counter()
    await asyncio.gather(*(work(client) for client in range(clients)))
    found.accepted_seconds = time.perf_counter() - began
    await _settle(found, server, began, patience)
    return found


async def steady(
    server: Server, per_second: float, seconds: float, *, prefix: str, patience: float, most_kept: int = 0
) -> Submitted:
    """Submit at a steady rate; wait up to `patience` seconds until all are decided.

    `most_kept` is the maximum number of workloads; older ones are cancelled as new ones arrive. 0 means no maximum.
    """
    count = round(per_second * seconds)
    found = Submitted(count, began_at=time.time())
    free: list[Connection] = []
    began = time.perf_counter()

    async def one(number: int) -> None:
        name = f"{prefix}-{number}"
        found.due_at[name] = found.began_at + number / per_second
        connection = free.pop() if free else server.connection()
        await _persist(found, connection, name)
        old = f"{prefix}-{number - most_kept}"
        if most_kept and old in found.accepted:
            for workload_id in found.accepted[old]:
                gone = await connection.ask("DELETE", f"/api/v1/workloads/{workload_id}/")
                found.cancelled += gone.status == 200
        free.append(connection)

    tasks = []
    for number in range(count):
        await asyncio.sleep(began + number / per_second - time.perf_counter())
        tasks.append(asyncio.create_task(one(number)))
    await asyncio.gather(*tasks)
    found.accepted_seconds = time.perf_counter() - began
    await asyncio.gather(*(connection.close() for connection in free))
    await _settle(found, server, began, patience)
    return found


async def _persist(found: Submitted, connection: Connection, name: str) -> None:
    """Submit with the same key until the response is neither 429 nor 503 nor missing."""
    found.due_at.setdefault(name, time.time())
    for _ in range(_MOST_REFUSALS):
        answer = await connection.ask("POST", "/api/v1/workloads/", request(name), {"Idempotency-Key": f"key-{name}"})
        found.answers.append(answer)
        if answer.status == 202:
            found.accepted.setdefault(name, set()).add(answer.document()["id"])
        if answer.status not in (0, 429, 503):
            return
        pause = answer.headers.get("retry-after", "")
        found.bare_refusals += answer.status == 429 and not pause.isdigit()
        await asyncio.sleep(min(float(pause), _LONGEST_PAUSE_SECONDS) if pause.isdigit() else 1.0)


async def _settle(found: Submitted, server: Server, began: float, patience: float) -> None:
    """Wait until all workloads are decided, then read the server's list."""
    connection = server.connection()
    pending = f"/api/v1/workloads/?cluster={CLUSTER}&state=pending&limit=1"
    while True:
        answer = await connection.ask("GET", pending)
        if answer.status == 200 and not answer.document()["items"]:
            found.decided_seconds = time.perf_counter() - began
            break
        if time.perf_counter() - began > patience:
            break
        await asyncio.sleep(_POLL_SECONDS)
    rows = await pages(connection, f"/api/v1/workloads/?cluster={CLUSTER}&limit=1000")
    await connection.close()
    ours = {*found.accepted}
    found.rows = [row for row in rows if row["name"] in ours]
    found.to_decision_seconds = [
        datetime.fromisoformat(row["decidedAt"]).timestamp() - found.due_at[row["name"]]
        for row in found.rows
        if row["decidedAt"]
    ]
