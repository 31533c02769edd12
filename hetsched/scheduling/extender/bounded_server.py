"""A server with one thread per connection and a limited number of connections and threads."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import structlog

log = structlog.get_logger(__name__)


class ConnectionLimits(Protocol):
    """The open connections of a server, at most `most`; older connections may be closed to accept a new connection."""

    most: int

    def admit(self, connection: Any, address: str) -> None: ...

    def release(self, connection: Any) -> object: ...

    def close_late(self) -> None: ...


class BoundedServer(ThreadingHTTPServer):
    """HTTP server that enforces the limits of `connections` and runs at most twice as many threads as connections.

    The thread of a closed connection ends at its next read or write; a database call may delay that. While all threads
    are in use, new connections are closed immediately.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], connections: ConnectionLimits
    ) -> None:
        self._free_threads = threading.BoundedSemaphore(2 * connections.most)
        self._connections = connections
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free_threads.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._connections.admit(request, client_address[0])
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was started
            self._end(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._end(request)

    def _end(self, request: Any) -> None:
        self._connections.release(request)
        self._free_threads.release()

    def service_actions(self) -> None:
        self._connections.close_late()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.info("connection closed", client=client_address[0], exc_info=True)
