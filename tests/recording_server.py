"""An HTTP server that records requests, for tests of outbound notifications."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from tests.server_thread import running


class ReceivedRequest(msgspec.Struct, frozen=True):
    """One received request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """Record requests and respond as configured; each entry of `statuses` is used once before `status`."""

    def __init__(self) -> None:
        self.requests: list[ReceivedRequest] = []
        self.status = 204
        self.statuses: list[int] = []
        self.headers: dict[str, str] = {}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                named = {name.lower(): value for name, value in self.headers.items()}
                receiver.requests.append(ReceivedRequest(self.path, named, body))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else receiver.status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.url = f"http://{self.host}/done"

    @property
    def documents(self) -> list[Any]:
        """Return the received documents, in order."""
        return [request.document for request in self.requests]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Listen on loopback for the duration of the block."""
    listening = Receiver()
    with running(listening.server):
        yield listening
