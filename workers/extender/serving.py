"""The extender's process: the door, and beside it a plain port for probes and figures.

Rule: a call is decoded, answered for the caller's cluster, and encoded. `filter` and `bind` say no inside their answer,
in words that kube-scheduler passes on to the pod's events; `prioritize` and `preempt` have no place for that and answer
503. Whatever goes wrong here is an error of that kind, never a success. A client that the list names without a cluster
speaks for the default one, else for the only live one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import structlog
from django.conf import settings
from django.db import DatabaseError, connection
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from hetsched.adapters.kubernetes.extender_messages import (
    BindingResult,
    FilterResult,
    read_args,
    read_binding,
    read_preemption,
)
from hetsched.contracts.errors import InputError
from hetsched.inventory.models import Cluster, ClusterKind

from .answers import Extender
from .asking import give_connections_back
from .door import Answer, Certificates, Door, Verb
from .figures import REGISTRY

log = structlog.get_logger(__name__)


class Extenders:
    """An extender for each cluster that somebody asks about."""

    def __init__(self, make: Callable[[Cluster], Extender]) -> None:
        self._make = make
        self._known: dict[int, Extender] = {}
        self._lock = threading.Lock()

    def of(self, name: str) -> Extender:
        """Return who answers for a cluster. Raises: InputError `ClusterUnknown` or `ClusterAmbiguous`."""
        live = Cluster.objects.filter(kind=ClusterKind.KUBERNETES).defer("definitions").order_by("id")
        name = name or settings.HETSCHED_DEFAULT_CLUSTER
        found = list(live.filter(name=name) if name else live[:2])
        if len(found) > 1:
            hint = "Write NAME=CLUSTER in HETSCHED_EXTENDER_CLIENTS"
            raise InputError("ClusterAmbiguous", "there are several live clusters", hint=hint)
        if not found:
            raise InputError("ClusterUnknown", f"there is no live cluster {name!r}" if name else "no live cluster yet")
        with self._lock:
            known = self._known.get(found[0].pk)
            if known is None:
                known = self._known[found[0].pk] = self._make(found[0])
        return known


def verbs(extenders: Extenders) -> dict[str, Verb]:
    """Return what the door may be asked for."""

    def filter_(cluster: str, body: bytes) -> Answer:
        args = read_args(body)
        return _said(lambda: extenders.of(cluster).filter(args), lambda text: FilterResult(error=text))

    def bind(cluster: str, body: bytes) -> Answer:
        args = read_binding(body)

        def bound() -> BindingResult:
            extenders.of(cluster).bind(args)
            return BindingResult()

        return _said(bound, BindingResult)

    def prioritize(cluster: str, body: bytes) -> Answer:
        args = read_args(body)
        return _said(lambda: extenders.of(cluster).prioritize(args))

    def preempt(cluster: str, body: bytes) -> Answer:
        args = read_preemption(body)
        return _said(lambda: extenders.of(cluster).preempt(args))

    return {"filter": filter_, "prioritize": prioritize, "preempt": preempt, "bind": bind}


def _said(answer: Callable[[], Any], no: Callable[[str], Any] | None = None) -> Answer:
    """Make an answer; `no` says a refusal inside it. Raises: InputError where there is no place for that."""
    try:
        return Answer(msgspec.json.encode(answer()))
    except InputError as error:
        refusal = error
    except DatabaseError as error:
        log.warning("the database is away", error=repr(error))
        refusal = InputError("DatabaseAway", "the database does not answer")
    except Exception as error:
        log.exception("an answer failed")
        refusal = InputError("ExtenderFailed", f"the answer failed: {type(error).__name__}")
    finally:
        give_connections_back()
    if no is None or refusal.code == "ExtenderArgsInvalid":
        raise refusal
    return Answer(msgspec.json.encode(no(f"hetsched: {refusal}")), refused=True)


class Probes(BaseHTTPRequestHandler):
    """`/healthz`, `/readyz` and `/metrics`, for whoever reaches the port: it should not leave the cluster."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "hetsched", ""
    timeout = 10

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._send(200, generate_latest(REGISTRY), CONTENT_TYPE_LATEST)
        elif self.path == "/healthz":
            self._send(200, b'{"status":"ok"}')
        elif self.path == "/readyz":
            ready = _database_answers()
            self._send(200 if ready else 503, b'{"status":"ok"}' if ready else b'{"status":"unready"}')
        else:
            self._send(404, b'{"status":"not found"}')

    def _send(self, status: int, body: bytes, content: str = "application/json") -> None:
        self.send_response(status)
        for name, value in (("Content-Type", content), ("Content-Length", str(len(body))), ("Connection", "close")):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("probe", said=format % args)


def _database_answers() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return False
    finally:
        give_connections_back()
    return True


def clients_of(listed: list[str]) -> dict[str, str]:
    """Read `NAME` and `NAME=CLUSTER`. Raises: InputError `ExtenderClientsMissing`."""
    if not listed:
        hint = "List the names of client certificates, each NAME or NAME=CLUSTER, comma-separated"
        raise InputError("ExtenderClientsMissing", "nobody may call", place="HETSCHED_EXTENDER_CLIENTS", hint=hint)
    return {name.strip(): cluster.strip() for name, _, cluster in (one.partition("=") for one in listed)}


def serve(ended: threading.Event) -> None:
    """Answer until `ended`. Raises: InputError where certificates, clients or ports cannot be had."""
    seconds = settings.HETSCHED_EXTENDER_SECONDS
    extenders = Extenders(lambda cluster: Extender(cluster, seconds))
    clients = clients_of(settings.HETSCHED_EXTENDER_CLIENTS)
    certificates = Certificates(Path(settings.HETSCHED_EXTENDER_CERTIFICATES))
    host = settings.HETSCHED_EXTENDER_HOST
    door = _open(host, settings.HETSCHED_EXTENDER_PORT, lambda at: Door(
        at, certificates, clients, verbs(extenders), settings.HETSCHED_EXTENDER_BYTES
    ))  # fmt: skip
    probes = _open(host, settings.HETSCHED_EXTENDER_PROBE_PORT, lambda at: ThreadingHTTPServer(at, Probes))
    probes.daemon_threads = True
    servers = (door, probes)
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    log.info("the extender answers", host=host, port=door.server_address[1], clients=sorted(clients))
    _warm_up(extenders, clients)
    ended.wait()
    for server in servers:
        server.shutdown()
        server.server_close()


def _open(host: str, port: int, make: Callable[[tuple[str, int]], Any]) -> Any:
    try:
        return make((host, port))
    except OSError as error:
        message = error.strerror or str(error)
        raise InputError("PortBusy", f"{host}:{port}: {message}", place="HETSCHED_EXTENDER_PORT") from None


def _warm_up(extenders: Extenders, clients: Mapping[str, str]) -> None:
    """Fold the states that will be asked for, so that the first pods do not wait for it."""
    for name in sorted(set(clients.values())):
        try:
            extenders.of(name).warm_up()
        except (InputError, DatabaseError) as error:
            log.info("not warm yet", cluster=name, reason=str(error))
        finally:
            give_connections_back()
