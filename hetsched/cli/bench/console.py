"""`hetsched bench console`: measure how fast a large fleet is shown, and how the page keeps up with changes.

A standalone server with separate processes and default settings watches the stub API server of `bench watch`. Pods of
another scheduler start and end at a steady rate, each on a different node. In addition to one page in Chromium, the
requested number of WebSocket clients receive the events as pages do. In the names of the results, "push" is the time at
which the server wrote an event to its outbox, and "pixel" the time at which the page painted the change. Finally, the
web server is killed: each client must then reach the same document as a page that is opened afterwards.
Browser measurements are omitted if Chromium or playwright is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from hetsched.contracts.errors import InputError
from hetsched.lab.bench.measure import BenchmarkRow, Checks, Progress, Scenario, machine, row
from hetsched.lab.bench.processes import cpu_of, memory_of, pids_of, used_seconds

from ..server.standalone import free_port, is_ready
from .browser import Browser, PageMeasurements
from .sockets import Sockets
from .watch import Lists, running_pod

CHANGES_PER_SECOND = 100
CLUSTER = "bench"
_TOPIC = f"cluster:{CLUSTER}"
_PATIENCE_SECONDS = 400.0
_POOLS = (
    ("edge", "riscv64", "rv64gc", ""),
    ("vector", "riscv64", "rva22u64_v", ""),
    ("cloud", "arm64", "armv8.2-a", ""),
    ("hpc", "arm64", "armv8.2-a_sve", ""),
    ("general", "amd64", "x86-64-v3", ""),
    ("compute", "amd64", "x86-64-v4", ""),
    ("inference", "amd64", "x86-64-v3", "Tesla-T4"),
    ("training", "amd64", "x86-64-v4", "NVIDIA-A100-SXM4-80GB"),
)


def run(nodes: int, pods: int, sockets: int, seconds: int, *, progress: Progress | None = None) -> Scenario:
    """Measure the console of a large live cluster. Raises: InputError `BenchmarkFailed`."""
    notify = progress or (lambda *_: None)
    steps = 6
    with tempfile.TemporaryDirectory(prefix="hetsched-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        lists = stack.enter_context(Lists(folder, nodes, pods, _node))
        server = stack.enter_context(_Server(folder, sockets))
        notify(1, steps)
        server.connect(lists, folder)
        server.wait_for_first_list(pods)
        notify(2, steps)
        browser = stack.enter_context(Browser(server.url, server.password))
        rows = _first_screens(browser)
        notify(3, steps)
        listening = stack.enter_context(Sockets(server.url, server.token(), _TOPIC, sockets))
        before = cpu_of(server.pid)
        began = time.monotonic()
        changes = _Changes(lists, nodes, pods)
        with changes.send_continuously(seconds):
            seen = browser.watch(seconds)
        used, took = used_seconds(before, cpu_of(server.pid)), time.monotonic() - began
        notify(4, steps)
        time.sleep(2)
        pushed = server.pushed()
        rows += _latencies(changes, seen, listening, pushed)
        rows += [row(f"CPU of {program}", "% of a core", [100 * share / took]) for program, share in used.items()]
        rows += [row(f"memory of {program}", "MiB", [mib]) for program, mib in memory_of(server.pid).items()]
        with changes.send_continuously(5):
            server.kill_web()
        notify(5, steps)
        checks = _check_convergence(server, browser, listening)
        rows.append(row("gaps noticed and closed", "", [listening.gaps]))
        notify(6, steps)
    facts = {
        **machine(), "nodes": nodes, "pods": pods, "sockets": sockets, "changesPerSecond": CHANGES_PER_SECOND,
        "browser": browser.version, "server": "standalone, embedded defaults",
    }  # fmt: skip
    return Scenario("console", tuple(rows), facts, checks)


def _first_screens(browser: Browser) -> list[BenchmarkRow]:
    loads = browser.loads(5)
    names = {
        "answered": "first screen, first byte", "painted": "first screen, first paint",
        "drawn": "first screen, nodes drawn",
    }  # fmt: skip
    rows = [row(title, "ms", [load[key] for load in loads], tail=True) for key, title in names.items() if loads]
    return rows + ([row("first screen, page", "KiB", [load["kib"] for load in loads])] if loads else [])


def _latencies(
    changes: _Changes, seen: PageMeasurements, listening: Sockets, pushed: dict[int, float]
) -> list[BenchmarkRow]:
    rows = []
    for title, values in {
        "push to socket": [1000 * (at - pushed[n]) for n, at in listening.received() if n in pushed],
        "push to pixel": [1000 * (at - pushed[n]) for n, at in seen.revisions() if n in pushed],
        "change to pixel": [1000 * waited for waited in seen.after(changes.sent)],
        "script of a drawing": [took for _, _, _, took in seen.drawn],
        "frame while hovering": seen.frames["hover"],
        "frame while scrolling": seen.frames["scroll"],
    }.items():
        if values:
            rows.append(row(title, "ms", values, tail=True))
            rows.append(row(f"{title}, p99", "ms", [float(np.percentile(values, 99))]))
    rows.append(row("messages to a socket", "/s", listening.rates()))
    return rows


def _check_convergence(server: _Server, browser: Browser, listening: Sockets) -> Checks:
    """Wait until all clients have the document of a new page; count the clients that still differ at the timeout."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        newest = server.revision()
        fresh = listening.fresh_document()
        wrong = listening.behind(newest, fresh) + browser.differs(fresh)
        if not wrong or time.monotonic() > until:
            return Checks(listening.compared + browser.pages, wrong)
        time.sleep(1)


class _Server:
    """Standalone server in a separate folder."""

    def __init__(self, folder: Path, sockets: int) -> None:
        self._data = folder / "data"
        self._log = folder / "server.log"
        self.port = free_port("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.port}"
        room = {
            "HETSCHED_SOCKETS_PER_USER": str(sockets + 20),
            "HETSCHED_SOCKETS_PER_ADDRESS": str(sockets + 20),
            "HETSCHED_CONNECTIONS": str(sockets + 2000),
            "HETSCHED_CONNECTIONS_PER_ADDRESS": str(sockets + 500),
        }
        self._env = {**os.environ, "HETSCHED_DATA": str(self._data), **room}
        for name in ("DATABASE_URL", "DATABASE_URL_FILE", "SECRET_KEY", "SECRET_KEY_FILE", "HETSCHED_DEFAULT_CLUSTER"):
            self._env.pop(name, None)

    def __enter__(self) -> _Server:
        words = ["standalone", f"--port={self.port}", f"--data={self._data}", "--no-demo"]
        with self._log.open("wb") as output:
            command = [sys.executable, "-m", "hetsched.cli", *words]
            env = {**self._env, "NO_COLOR": "1"}
            self._process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self.pid = self._process.pid
        try:
            _wait(lambda: "stop        Ctrl-C" in self._log.read_text(), self._process, "the server did not start")
        except BaseException as error:
            self.__exit__()
            if isinstance(error, InputError):
                last = self._log.read_text(errors="replace").strip().splitlines()[-3:]
                raise InputError(error.code, error.message, hint="; ".join(last)[:1000]) from None
            raise
        lines = [line.split() for line in self._log.read_text().splitlines()]
        self.password = next(words[1] for words in lines if words[:1] == ["password"])
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def connect(self, lists: Lists, folder: Path) -> None:
        """Connect the server to the stub API server."""
        kubeconfig = folder / "kubeconfig"
        kubeconfig.touch(0o600)
        kubeconfig.write_text(json.dumps(lists.kubeconfig()))
        key = (self._data / "secret-key").read_text().strip()
        env = {
            **self._env, "DJANGO_SETTINGS_MODULE": "hetsched.project.settings", "SECRET_KEY": key, "REDIS_URL":
            "memory://", "HETSCHED_LOG_LEVEL": "warning",
        }  # fmt: skip
        words = ["connect", CLUSTER, f"--kubeconfig={kubeconfig}"]
        subprocess.run([sys.executable, "-m", "django", *words], env=env, check=True, stdout=subprocess.DEVNULL)

    def token(self) -> str:
        """Return a new viewer token."""
        words = ["token", "create", "--role=viewer", f"--data={self._data}", "-o", "json"]
        command = [sys.executable, "-m", "hetsched.cli", *words]
        content = subprocess.run(command, env=self._env, check=True, stdout=subprocess.PIPE).stdout
        return str(json.loads(content)["token"])

    def _ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        database = f"file:{self._data / 'hetsched.sqlite3'}?mode=ro"
        with contextlib.closing(sqlite3.connect(database, uri=True, timeout=30)) as rows:
            return rows.execute(query, values).fetchall()

    def wait_for_first_list(self, pods: int) -> None:
        """Wait until the database contains all objects of the lists."""

        def whole() -> bool:
            ((count, synced),) = self._ask("SELECT COUNT(*), COUNT(synced_at) FROM inventory_sync WHERE required")
            ((known,),) = self._ask("SELECT COUNT(*) FROM placement_pod")
            return bool(count and count == synced and known >= pods)

        _wait(whole, self._process, "the first list was not written to the database in time")

    def revision(self) -> int:
        """Return the revision of the cluster's latest event."""
        ((found,),) = self._ask("SELECT revision FROM journal_topic WHERE name = ?", _TOPIC)
        return int(found)

    def pushed(self) -> dict[int, float]:
        """Return the time at which each event was written to the outbox (seconds since 1970), by revision."""
        rows = self._ask("SELECT revision, created_at FROM journal_outboxevent WHERE topic = ?", _TOPIC)
        return {number: datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp() for number, at in rows}

    def kill_web(self) -> None:
        """Kill the web server, which drops every socket, and wait until the next one responds."""
        for pid in pids_of(self.pid, "uvicorn"):
            os.kill(pid, signal.SIGKILL)
        time.sleep(1)
        _wait(lambda: is_ready(f"{self.url}/readyz"), self._process, "the web server did not restart in time")


def _wait(holds: Any, process: subprocess.Popen[bytes], failure: str) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while not holds():
        if process.poll() is not None or time.monotonic() > until:
            raise InputError("BenchmarkFailed", failure)
        time.sleep(0.2)


class _Changes:
    """Generator of pods that start and end at a steady rate.

    `sent` has the times of the changes by node, in seconds since 1970.
    """

    def __init__(self, lists: Lists, nodes: int, pods: int) -> None:
        self._lists = lists
        self._nodes = nodes
        self._pods = pods
        self._number = 0
        self.sent: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def send_continuously(self, seconds: float) -> Iterator[None]:
        """Send changes while the `with` block runs, and for at least the given seconds."""
        over = threading.Event()
        thread = threading.Thread(target=self._send, args=(seconds, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _send(self, seconds: float, over: threading.Event) -> None:
        began, first = time.monotonic(), self._number
        while not over.is_set() or time.monotonic() - began < seconds:
            time.sleep(max(0.0, began + (self._number - first) / CHANGES_PER_SECOND - time.monotonic()))
            number, self._number = self._number, self._number + 1
            # Consecutive changes affect nodes that are far apart on the page.
            node = (number * 1009) % self._nodes
            self.sent.setdefault(_name(node), []).append(time.time())
            if number % 2 and number // 2 < self._pods:
                gone = running_pod(f"here-{node}", node, number + 2, phase="Succeeded")
                self._lists.send("MODIFIED", [gone])
            else:
                self._lists.send("ADDED", [running_pod(f"new-{number}", node, number + 2)])


def _name(number: int) -> str:
    return f"bench-{number:05}"


def _node(number: int) -> bytes:
    pool, arch, isa, model = _POOLS[number % len(_POOLS)]
    name = _name(number)
    labels = {
        "kubernetes.io/arch": arch, "kubernetes.io/os": "linux", "kubernetes.io/hostname": name, "hetsched.io/isa": isa,
        "hetsched.io/pool": pool,
    }  # fmt: skip
    room = {"cpu": "16", "memory": "64Gi", "pods": "250"}
    if model:
        room["nvidia.com/gpu"] = "8"
        labels["nvidia.com/gpu.product"] = model
    status = {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready", "status": "True"}]}
    meta = {"name": name, "uid": f"node-{number}", "resourceVersion": "1", "labels": labels}
    return json.dumps({"metadata": meta, "status": status}).encode()
