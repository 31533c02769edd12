"""The extender's plain HTTP port for liveness, readiness and metrics.

Callers are not authenticated, so the port has a small pool of connections, each with a deadline, separate from the pool
of the TLS port. The database is checked at most once per `READY_SECONDS`, whatever the number of requests.
"""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

import structlog
from django.db import DatabaseError, connection
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from .bounded_server import BoundedServer
from .connections import Pool
from .metrics import REGISTRY
from .request_context import close_expired_connections

MOST_CONNECTIONS = 16
PER_ADDRESS = 4
CONNECTION_SECONDS = 10.0
READY_SECONDS = 1.0
log = structlog.get_logger(__name__)


class ProbeServer(BoundedServer):
    """HTTP server for probes; a full pool closes its oldest connection."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.connections = Pool(MOST_CONNECTIONS, CONNECTION_SECONDS, per_address=PER_ADDRESS)
        self.readiness = Readiness()
        super().__init__(address, Probes, self.connections)


class Readiness:
    """Cached readiness of the database: a result is valid for `READY_SECONDS`, and one thread queries at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready = False
        self._until = 0.0  # a time.monotonic() value

    def check(self) -> bool:
        with self._lock:
            if time.monotonic() >= self._until:
                self._ready = _database_answers()
                self._until = time.monotonic() + READY_SECONDS
            return self._ready


class Probes(BaseHTTPRequestHandler):
    """Handlers of `/healthz`, `/readyz` and `/metrics`, without authentication: keep the port inside the cluster."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "hetsched", ""
    timeout = CONNECTION_SECONDS
    server: ProbeServer

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._send(200, generate_latest(REGISTRY), CONTENT_TYPE_LATEST)
        elif self.path == "/healthz":
            self._send(200, b'{"status":"ok"}')
        elif self.path == "/readyz":
            ready = self.server.readiness.check()
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
        close_expired_connections()
    return True
