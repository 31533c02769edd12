"""`hetsched bench watch`: measure the delay from an API server's event to the database.

A stub API server with prepared objects is used, so that the measurement contains the delay of hetsched but not that of
etcd. The stub lists nodes and running pods of another scheduler in pages. Then it sends events at a steady rate: some
pods are placed, and others end. The informer runs as a separate process with a database of its own, which is removed
afterwards. An event has arrived when a reader of that database sees it; its delay is measured from the time at which it
was sent.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg

from hetsched.adapters.kubernetes.resources import LEASES, NODES, PODS, REQUIRED
from hetsched.contracts.errors import InputError
from hetsched.lab.bench.certificate import self_signed
from hetsched.lab.bench.measure import BenchmarkRow, Checks, Progress, Scenario, machine, row
from hetsched.lab.bench.processes import cpu_of, used_seconds

from .databases import BenchDatabase, facts_of, new_database

RATE_PER_SECOND = 500
ENDING_SHARE = 5  # one in five events ends a pod
_PATIENCE_SECONDS = 300.0
_LOOK_SECONDS = 0.01
_KUBE_SYSTEM = {"metadata": {"name": "kube-system", "uid": "00000000-0000-4000-8000-000000000000"}}


def run(nodes: int, pods: int, seconds: int, *, database: str = "", progress: Progress | None = None) -> Scenario:
    """Measure the first list, and then events for some seconds.

    `database` is the URL of a PostgreSQL server, empty for SQLite.
    Raises: InputError `BenchmarkFailed`, `DatabaseUnusable`.
    """
    notify = progress or (lambda *_: None)
    with (
        tempfile.TemporaryDirectory(prefix="hetsched-bench-") as name,
        Lists(Path(name), nodes, pods) as lists,
        new_database(database) as own,
    ):
        folder = Path(name)
        kubeconfig = folder / "kubeconfig"
        kubeconfig.touch(0o600)
        kubeconfig.write_text(json.dumps(lists.kubeconfig()))
        env = {
            **own.environment(),
            "DJANGO_SETTINGS_MODULE": "hetsched.project.settings",
            "HETSCHED_DATA": str(folder / "data"),
            "SECRET_KEY": secrets.token_urlsafe(48),
            "REDIS_URL": "memory://",
            "HETSCHED_LOG_LEVEL": "warning",
        }
        for words in (["prepare"], ["connect", "bench", f"--kubeconfig={kubeconfig}"]):
            subprocess.run([sys.executable, "-m", "django", *words], env=env, check=True, stdout=subprocess.DEVNULL)
        notify(1, 3)
        with _run_watch(env, folder / "log") as process, _reader(own, folder / "data") as reader:
            began, server_before = time.monotonic(), cpu_of(*own.pids)
            if not reader.wait_for(lambda: reader.pods >= pods and reader.synced, process):
                message = f"the informer did not finish the first list within {_PATIENCE_SECONDS:.0f} seconds"
                raise InputError("BenchmarkFailed", message)
            rows = [row("first list in the ledger", "s", [time.monotonic() - began])]
            used = sum(cpu_of(process.pid).values())
            rows.append(row("first list, CPU", "s", [used]))
            rows += _cpu_of_server(own, "first list", "s", server_before, 1.0)
            server_before = cpu_of(*own.pids)
            notify(2, 3)
            # read while sending; reading afterwards would measure how long sending takes
            with ThreadPoolExecutor(1) as threads:
                sending = threads.submit(lists.send_events, seconds)
                reader.wait_for(sending.done, process)
                sent = sending.result()
            reader.wait_for(lambda: sent.keys() <= reader.seen.keys(), process)
            waited = sorted(1000 * (reader.seen[key] - at) for key, at in sent.items() if key in reader.seen)
            count = max(len(sent) * ENDING_SHARE // (ENDING_SHARE - 1), 1)
            rows += _latencies(waited)
            rows.append(row("events, CPU", "ms/event", [1000 * (sum(cpu_of(process.pid).values()) - used) / count]))
            rows += _cpu_of_server(own, "events", "ms/event", server_before, 1000 / count)
            rows.append(row("memory, the most", "MiB", [_most_memory_mib(process.pid)]))
        lost = sum(key not in reader.seen for key in sent)
    facts = {
        **machine(), **facts_of(database), "nodes": nodes, "pods": pods, "eventsPerSecond": RATE_PER_SECOND,
        "server": "prepared lists",
    }  # fmt: skip
    return Scenario("watch", tuple(rows), facts, Checks(pods + len(sent), lost))


def _latencies(waited: list[float]) -> list[BenchmarkRow]:
    if not waited:
        return []
    p99 = waited[int(0.99 * (len(waited) - 1))]
    return [row("event to ledger", "ms", waited, tail=True), row("event to ledger, p99", "ms", [p99])]


def _cpu_of_server(
    database: BenchDatabase, part: str, unit: str, before: Mapping[str, float], factor: float
) -> list[BenchmarkRow]:
    """Return the CPU time of a local database server since `before`, times `factor`."""
    used = used_seconds(before, cpu_of(*database.pids))
    return [row(f"{part}, CPU of {program}", unit, [factor * seconds]) for program, seconds in used.items()]


def _most_memory_mib(pid: int) -> float:
    """Return the peak resident size of a process in MiB, or 0 if unknown."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


@contextlib.contextmanager
def _run_watch(env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        command = [sys.executable, "-m", "django", "watch"]
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _reader(database: BenchDatabase, folder: Path) -> Iterator[_DatabaseReader]:
    if database.url:
        with psycopg.connect(database.url, autocommit=True) as rows:
            yield _DatabaseReader(rows, "%s")
        return
    path = f"file:{folder / 'hetsched.sqlite3'}?mode=ro"
    with contextlib.closing(sqlite3.connect(path, uri=True, isolation_level=None)) as lite:
        yield _DatabaseReader(lite, "?")


class _DatabaseReader:
    """Reader of the database that records when each pod was first seen; `marker` is its driver's parameter marker."""

    def __init__(self, rows: Any, marker: str) -> None:
        self._rows = rows
        self._query = f"SELECT id, name FROM placement_pod WHERE id > {marker} ORDER BY id"  # noqa: S608
        self._last = 0
        self.pods = 0
        self.seen: dict[str, float] = {}

    @property
    def synced(self) -> bool:
        """Return whether the informer has listed every required kind completely."""
        query = "SELECT COUNT(*), COUNT(synced_at) FROM inventory_sync WHERE required"
        count, whole = self._rows.execute(query).fetchone()
        return bool(count and count == whole)

    def look(self) -> None:
        now = time.monotonic()
        for self._last, name in self._rows.execute(self._query, (self._last,)):  # noqa: B020 - the last one stays
            self.seen[name] = now
            self.pods += 1

    def wait_for(self, holds: Callable[[], bool], process: subprocess.Popen[bytes]) -> bool:
        """Read the database until `holds()` is true; return False if it is still false after `_PATIENCE_SECONDS`.

        Raises: InputError `BenchmarkFailed` if the process ends before that.
        """
        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            self.look()
            if holds():
                return True
            if process.poll() is not None:
                raise InputError("BenchmarkFailed", "the watch process ended unexpectedly")
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK_SECONDS)


class Lists:
    """Stub API server that lists prepared nodes and pods, and sends events to watchers of pods."""

    def __init__(self, folder: Path, nodes: int, pods: int, node: Callable[[int], bytes] | None = None) -> None:
        self._nodes = nodes
        self._objects = {
            NODES.path(): [(node or _node)(number) for number in range(nodes)],
            PODS.path(): [running_pod(f"here-{number}", number % nodes, 1) for number in range(pods)],
        }
        certificate, key = self_signed("127.0.0.1")
        (folder / "server.pem").write_bytes(certificate + key)
        self._authority = certificate
        self._events: list[bytes] = []
        self._more = threading.Condition()
        self._version = 1
        self._lease = b""
        lists = self

        class ListHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                lists.answer(self)

            def do_POST(self) -> None:
                lists.keep(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))

            do_PUT = do_PATCH = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), ListHandler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def __enter__(self) -> Lists:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def kubeconfig(self) -> dict[str, Any]:
        server = f"https://127.0.0.1:{self._server.server_port}"
        authority = b64encode(self._authority).decode()
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "b", "cluster": {"server": server, "certificate-authority-data": authority}}],
            "users": [{"name": "b", "user": {"token": "bench"}}],
            "contexts": [{"name": "b", "context": {"cluster": "b", "user": "b"}}],
            "current-context": "b",
        }

    def send_events(self, seconds: int) -> dict[str, float]:
        """Send events at `RATE_PER_SECOND`; return the time at which each new pod was sent."""
        sent: dict[str, float] = {}
        began, ended = time.monotonic(), 0
        for number in range(seconds * RATE_PER_SECOND):
            time.sleep(max(0.0, began + number / RATE_PER_SECOND - time.monotonic()))
            with self._more:
                self._version += 1
                if number % ENDING_SHARE:
                    kind, body = "ADDED", running_pod(f"new-{number}", number % self._nodes, self._version)
                    sent[f"new-{number}"] = time.monotonic()
                else:
                    body = running_pod(f"here-{ended}", ended % self._nodes, self._version, phase="Succeeded")
                    kind, ended = "MODIFIED", ended + 1
                self._events.append(b'{"type":"%s","object":%s}\n' % (kind.encode(), body))
                self._more.notify_all()
        return sent

    def send(self, kind: str, pods: Iterable[bytes]) -> None:
        """Send one event for each of these pods to the watchers."""
        with self._more:
            self._version += 1
            self._events += [b'{"type":"%s","object":%s}\n' % (kind.encode(), pod) for pod in pods]
            self._more.notify_all()

    # -- responses
    # ---------------------------------------------------------------------------------------------------------

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        if url.path == "/api/v1/namespaces/kube-system":
            self._send(handler, json.dumps(_KUBE_SYSTEM).encode())
        elif LEASES.plural in url.path and self._lease:
            self._send(handler, self._lease)
        elif query.get("watch"):
            self._watch(handler, pods=url.path == PODS.path())
        elif url.path in self._objects or url.path in {resource.path() for resource in REQUIRED}:
            self._list(handler, self._objects.get(url.path, []), query)
        else:
            self.refuse(handler)

    def keep(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        """Accept a write of hetsched's Lease, the only object that it writes if all pods belong to other schedulers."""
        if LEASES.plural not in handler.path:
            return self.refuse(handler)
        plain = json.loads(body)
        plain["metadata"]["resourceVersion"] = "1"
        self._lease = json.dumps(plain).encode()
        return self._send(handler, self._lease, 201)

    def refuse(self, handler: BaseHTTPRequestHandler) -> None:
        self._send(handler, b'{"kind":"Status","status":"Failure","reason":"NotFound","code":404}', 404)

    def _list(self, handler: BaseHTTPRequestHandler, items: list[bytes], query: dict[str, str]) -> None:
        start, limit = int(query.get("continue") or 0), int(query.get("limit") or len(items) or 1)
        end = start + limit
        more = str(end) if end < len(items) else ""
        head = json.dumps({"resourceVersion": "1", "continue": more}).encode()
        self._send(handler, b'{"metadata":' + head + b',"items":[' + b",".join(items[start:end]) + b"]}")

    def _watch(self, handler: BaseHTTPRequestHandler, *, pods: bool) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        at, until = 0, time.monotonic() + 3600
        with contextlib.suppress(OSError):
            while time.monotonic() < until:
                with self._more:
                    while not (pods and len(self._events) > at):
                        self._more.wait(1)
                    some, at = self._events[at:], len(self._events)
                body = b"".join(some)
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(body), body))
                handler.wfile.flush()

    def _send(self, handler: BaseHTTPRequestHandler, body: bytes, status: int = 200) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


def _node(number: int) -> bytes:
    room = {"cpu": "64", "memory": "256Gi", "pods": "250"}
    name = f"bench-{number:05}"
    labels = {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
    status = {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready", "status": "True"}]}
    meta = {"name": name, "uid": f"node-{number}", "resourceVersion": "1", "labels": labels}
    return json.dumps({"metadata": meta, "status": status}).encode()


def running_pod(name: str, node: int, version: int, phase: str = "Running") -> bytes:
    """Return a pod of another scheduler on a node, as an API server returns it."""
    requests = {"cpu": "100m", "memory": "128Mi"}
    meta = {
        "name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "bench"},
    }  # fmt: skip
    spec = {
        "nodeName": f"bench-{node:05}", "schedulerName": "default-scheduler",
        "containers": [{"name": "main", "image": "pause:3.10", "resources": {"requests": requests}}],
    }  # fmt: skip
    status = {"phase": phase, "qosClass": "Burstable"}
    return json.dumps({"metadata": meta, "spec": spec, "status": status}).encode()
