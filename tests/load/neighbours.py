"""Latency of one token's requests while another token floods the server.

The same steady rate of one token is measured twice: alone, and while the clients of another token send as fast as they
get responses and ignore `429`. The flooding token has the limits of a pipeline (`submitsPerMinute`), and its pods do
not fit anywhere. Its clients run in a separate process, so that they share only the machine with the measured clients.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .client import Server
from .parts import Meter, p99, whole
from .planes import CLUSTER, Plane, run_command
from .report import Goal, Part, durations
from .submitting import steady

_TIMES = 2.0
_CLIENTS = 10
_PER_MINUTE = 60


def neighbours(plane: Plane, per_second: float, seconds: float) -> Part:
    """Measure a steady rate alone, then during a flood."""
    words = ("token", "create", "--role=submitter", "--name=flood", f"--submits-per-minute={_PER_MINUTE}")
    flood = Server(plane.server.host, plane.server.port, run_command(plane.env, *words)["token"])
    asyncio.run(steady(plane.server, per_second, 5, prefix="warm", patience=60))
    meter = Meter(plane)
    alone = asyncio.run(steady(plane.server, per_second, seconds, prefix="alone", patience=120))
    with _flooded(flood) as refused:
        flooded = asyncio.run(steady(plane.server, per_second, seconds, prefix="beside", patience=120))
    goals, notes = [*whole(alone), *whole(flooded)], []
    for what, before, after in (
        ("accepting one", alone.accepting_seconds, flooded.accepting_seconds),
        ("submit to decision", alone.to_decision_seconds, flooded.to_decision_seconds),
    ):
        was, became = p99(before), p99(after)
        ratio = became / was if was and became else None
        found = "nothing" if ratio is None else f"{ratio:.2f} times ({was:.0f} -> {became:.0f} ms)"
        goals.append(Goal(f"{what}, p99 during a flood", f"<= {_TIMES:g} times", found, ratio and ratio <= _TIMES))
    notes.append(f"The flood of {_CLIENTS} clients was answered: {dict(sorted(refused.items()))}.")
    return Part(
        "neighbours of a flood", plane.backend,
        {"perSecond": per_second, "seconds": seconds, "floodingClients": _CLIENTS, "mayPerMinute": _PER_MINUTE}, goals,
        [
            durations("accept, alone", alone.accepting_seconds),
            durations("accept, during the flood", flooded.accepting_seconds),
            durations("submit to decision, alone", alone.to_decision_seconds),
            durations("submit to decision, during the flood", flooded.to_decision_seconds),
        ],
        flooded.outcomes, notes=notes, **meter.figures(len(alone.answers) + len(flooded.answers)),
    )  # fmt: skip


@contextmanager
def _flooded(server: Server) -> Iterator[Counter[str]]:
    """Keep the flooding clients sending for the duration of the block; their responses are available after it."""
    answered: Counter[str] = Counter()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    clients = context.Process(target=_send, args=(server.host, server.port, server.token, theirs), daemon=True)
    clients.start()
    try:
        assert ours.poll(60), "the flood does not begin"
        ours.recv()
        yield answered
        ours.send("end")
        assert ours.poll(60), "the flood does not end"
        answered.update(ours.recv())
    finally:
        clients.terminate()
        clients.join()


def _send(host: str, port: int, token: str, pipe: Any) -> None:
    pipe.send("begun")
    pipe.send(asyncio.run(_flood(Server(host, port, token), pipe)))


async def _flood(server: Server, pipe: Any) -> dict[str, int]:
    found: Counter[str] = Counter()

    async def client(number: int) -> None:
        connection, sent = server.connection(), 0
        while not pipe.poll():
            sent += 1
            answer = await connection.ask("POST", "/api/v1/workloads/", _request(f"flood-{number}-{sent}"))
            found[answer.outcome] += 1
            if not answer.status:
                await asyncio.sleep(0.1)
        await connection.close()

    await asyncio.gather(*map(client, range(_CLIENTS)))
    return dict(found)


def _request(name: str) -> dict[str, Any]:
    """Return a body that submits a pod that does not fit any node."""
    container = {"name": "main", "image": "job:1", "resources": {"requests": {"cpu": "100000"}}}
    metadata = {"name": f"{name}-{time.time_ns()}", "namespace": "flood"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    return {"manifest": pod, "cluster": CLUSTER}
