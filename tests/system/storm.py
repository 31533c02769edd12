"""A control plane on PostgreSQL and Redis behind faulty links, and clients that submit through it continuously.

A client creates a key, sends one workload with it until it is accepted, and records every response. After a 503, a 429
or no response it retries with the same key. At the end every key has one workload, each workload was decided, and no
other error occurred.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from tests import parts
from tests.fault_table import Faults
from tests.system.databases import Database, postgres
from tests.system.link import Link
from tests.system.plane import Plane, plane_on
from tests.system.processes import Process, accepts, free_port, message_store, wait_until

CLUSTER = "storm"
PODS_EACH = 2
CLIENTS = 4
RECOVERY_SECONDS = 60  # the targets are 15 and 30 on an idle machine
WEB = ("-m", "uvicorn", "hetsched.project.asgi:application", "--lifespan", "off", "--timeout-graceful-shutdown", "10")


class Clients:
    """Running clients and the responses that they received."""

    def __init__(self, ports: list[int], token: str, prefix: str, pause_seconds: float = 0.1) -> None:
        self._ports, self._token, self._prefix, self._pause = ports, token, prefix, pause_seconds
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._submit, args=(number,)) for number in range(CLIENTS)]
        self.accepted: dict[str, str] = {}
        self.answers: Counter[int] = Counter()
        self.unanswered: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.longest_seconds = 0.0

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def use(self, ports: list[int]) -> None:
        """Send all further requests to the web servers on these ports."""
        self._ports = list(ports)

    def wait_for_more(self, count: int, *, seconds: float = RECOVERY_SECONDS) -> float:
        """Wait until `count` more workloads have been accepted, and return the elapsed seconds."""
        wanted = len(self.accepted) + count
        return wait_until(lambda: len(self.accepted) >= wanted, what=lambda: f"submissions: {self}", seconds=seconds)

    def __str__(self) -> str:
        return (
            f"{len(self.accepted)} accepted, answers {dict(self.answers)}, without one {dict(self.unanswered)}, "
            f"longest {self.longest_seconds:.1f} s, wrong {self.wrong[:3]}"
        )

    def _submit(self, client: int) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        with httpx.Client(headers=headers, timeout=30) as http:
            number = 0
            while not self._over.is_set():
                key, number = f"{self._prefix}-{client}-{number}", number + 1
                while not self._over.is_set() and not self._try(http, key, number):
                    time.sleep(0.1)
                time.sleep(self._pause)

    def _try(self, http: httpx.Client, key: str, number: int) -> bool:
        """Send a workload once; return whether it was accepted."""
        port = self._ports[number % len(self._ports)]
        began = time.monotonic()
        try:
            answer = http.post(
                f"http://127.0.0.1:{port}/api/v1/workloads/?cluster={CLUSTER}",
                json={"manifest": _manifest(key)},
                headers={"Idempotency-Key": key},
            )
        except httpx.TransportError as error:
            self.unanswered[type(error).__name__] += 1
            return False
        self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
        self.answers[answer.status_code] += 1
        if answer.status_code in (200, 201, 202):
            self.accepted[key] = answer.json()["id"]
            return True
        if answer.status_code not in (429, 503) or "Retry-After" not in answer.headers:
            self.wrong.append(f"{answer.status_code} {answer.text[:300]}")
        return False


def _manifest(key: str) -> dict[str, Any]:
    requests = {"cpu": "10m", "memory": "8Mi"}
    pods = [
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{key}-{number}", "namespace": "storm"},
            "spec": {"containers": [{"name": "main", "image": "job:1", "resources": {"requests": requests}}]},
        }
        for number in range(PODS_EACH)
    ]  # fmt: skip
    return {"apiVersion": "v1", "kind": "List", "items": pods}


class Storm:
    """The control plane, its faulty links, and its running programs."""

    def __init__(self, plane: Plane, database: Link, store: Link, direct: Database, store_port: int) -> None:
        self.plane, self.database, self.store = plane, database, store
        self.direct_database, self.store_port = direct, store_port
        assert plane.driver
        self.ask = plane.driver
        # a high limit, because `make chaos` submits tens of thousands of pods
        self.ask("add_cluster", name=CLUSTER, nodes=40, pods=2000)
        asked = ("token", "create", "--role", "submitter", "-o", "json")
        self.token = json.loads(plane.run("-m", "hetsched.cli", *asked))["token"]
        self.ports: list[int] = []

    def start_web(self, wish: Mapping[str, str] | None = None) -> Process:
        """Start a web server that the next clients also use; `wish` contains faults of `tests.system.faulty`."""
        port = free_port()
        words = (*WEB, "--port", str(port))
        web = self.plane.start("web", *words) if wish is None else self.plane.start_faulty("web", wish, *words)
        wait_until(lambda: accepts(port) or not web.running, what="the web server", seconds=120)
        assert web.running, web.said()
        self.ports.append(port)
        return web

    def clients(self, prefix: str) -> Clients:
        return Clients(list(self.ports), self.token, prefix)

    def all_decided(self, clients: Clients, faults: Faults | None = None) -> float:
        """Wait until every accepted workload is decided and check that none is lost or duplicated; return the elapsed
        seconds.
        """
        where = lambda: f"{clients}\n{self.ask('workloads')}\n{self.plane.log_tails()}"  # noqa: E731
        took = wait_until(lambda: not self.ask("workloads").get("pending"), what=where, seconds=RECOVERY_SECONDS)
        assert clients.wrong == [], str(clients)
        ids = list(clients.accepted.values())
        assert len(set(ids)) == len(ids)
        found = faults or Faults("")
        placed, decided_again = self.ask("placed_pods", workloads=ids)
        found.size = f"{len(ids)} submissions"
        found.add("lost", range(PODS_EACH * len(ids) - placed))
        found.add("bound twice", [*range(decided_again), *self.ask("violations")])
        found.assert_none(str(clients))
        return took


@contextlib.contextmanager
def storm(**settings: str) -> Iterator[Storm]:
    """Yield a control plane behind faulty links; no process is started yet."""
    redis = parts.require("redis-server")
    with (
        postgres(prepared=True) as direct, message_store(redis) as store_port,
        Link(direct.port) as database, Link(store_port) as store,
    ):  # fmt: skip
        # The driver connects directly, without the links.
        urls = {"DATABASE_URL": direct.url, "REDIS_URL": f"redis://127.0.0.1:{store_port}/0"}
        with plane_on(direct._replace(port=database.port).url, store.port, settings, urls) as plane:
            yield Storm(plane, database, store, direct, store_port)
