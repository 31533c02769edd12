"""Submissions from outside: a burst of many clients with retries, and a steady rate.

Rule: every submission has an idempotency key of its own. A retry is the same request once more: at the same time over
another connection, or after the answer. What is told 429 comes again after its `Retry-After`, what got no answer or 503
a second later, as from a client whose server was just killed. In the end the server's list is compared with what was
sent: a name twice was doubled, one that is not there was lost, though it was accepted.
The steady rate is open: the next is sent when it is due, however long the answers take, and its latency counts from
then, so a server that stands still is not measured once but as often as it kept somebody waiting.
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
    """What became of submissions, as the clients saw it and as the server lists it."""

    wanted: int
    answers: list[Answer] = []
    accepted: dict[str, set[str]] = {}  # name -> ids that clients were told
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
        """How many were accepted and are not there."""
        there = {row["name"] for row in self.rows}
        return len(self.accepted.keys() - there)

    @property
    def doubled(self) -> int:
        """How many are there more than once, or were told two ids."""
        listed = Counter(row["name"] for row in self.rows)
        twice = {name for name, count in listed.items() if count > 1}
        return len(twice | {name for name, ids in self.accepted.items() if len(ids) > 1})

    @property
    def undecided(self) -> int:
        return sum(row["state"] == "pending" for row in self.rows)

    @property
    def replayed(self) -> int:
        """How many answers were those of a request before, as the server says."""
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
    """Submit as fast as `clients` can, a share of them twice; wait `patience` seconds at most until all are decided."""
    found = Submitted(count, began_at=time.time())
    dice = random.Random(prefix)  # the same run every time
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
    """Submit at a steady rate; wait until all are decided, `patience` seconds at most.

    `most_kept`: so many stay, older ones are cancelled as new ones come; 0: all stay.
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
    """Submit until it is answered otherwise than by 429, 503 or not at all, with the same key."""
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
    """Wait until nothing is undecided any more, then read what the server lists."""
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
