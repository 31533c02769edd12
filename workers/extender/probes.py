"""The extender's plain HTTP port for liveness, readiness and metrics."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from typing import Any

import structlog
from django.db import DatabaseError, connection
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from .figures import REGISTRY
from .request_context import give_connections_back

log = structlog.get_logger(__name__)


class Probes(BaseHTTPRequestHandler):
    """Handlers of `/healthz`, `/readyz` and `/metrics`, without authentication: keep the port inside the cluster."""

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
