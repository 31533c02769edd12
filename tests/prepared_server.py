"""An API server for tests that sends prepared responses: on each connection, one per request, in order."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from kubernetes import client

from hetsched.adapters.kubernetes.api import Api
from hetsched.lab.bench.certificate import self_signed

OK = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"
CLOSE = b"HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.1 201 Created\r\n\r\n{}"
SILENT, END = b"no response", b"end of the connection"


def response(status: int, content: Any) -> bytes:
    """Return a response with a JSON body."""
    body = json.dumps(content).encode()
    return b"HTTP/1.1 %d Prepared\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


class ReceivedCall(NamedTuple):
    """A request that the server received; `content` is its Content-Type."""

    method: str
    path: str
    content: str
    body: bytes


CONFLICT = response(409, {"reason": "Conflict", "message": "already bound"})


class PreparedServer:
    """Server with prepared responses by path, `OK` by default; it responds only while `released` is set.

    A list contains the responses to the first requests. `CHUNKED` is sent byte by byte. With `tls`, a folder,
    connections use TLS with a certificate in this folder.
    """

    def __init__(self, tls: Path | None = None) -> None:
        self.responses: dict[str, bytes | list[bytes]] = {}
        self.received: list[ReceivedCall] = []
        self.connections = 0
        self.released = threading.Event()
        self.released.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.listener.getsockname()[1]}"
        self._certificate, self._tls = "", None
        if tls is not None:
            certificate, key = self_signed("127.0.0.1")
            file = tls / "server.pem"
            file.write_bytes(certificate + key)
            self._certificate, self._tls = certificate.decode(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(file)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def paths(self) -> list[str]:
        """Return the paths of all requests."""
        return [call.path for call in self.received]

    def refuse_connections(self) -> None:
        """Accept no further connections; open ones are served."""
        self.listener.shutdown(socket.SHUT_RDWR)  # without it, the blocked `accept` takes one more
        self.listener.close()

    def client(self, **options: Any) -> Api:
        """Return a client of this server."""
        configuration = client.Configuration(host=self.url)
        configuration.ca_cert_data = self._certificate or None
        return Api(configuration, connect=_connect, **options)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connected, _ = self.listener.accept()
                self.connections += 1
                if self._tls is not None:
                    connected = self._tls.wrap_socket(connected, server_side=True)
                threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        with connected, connected.makefile("rb") as file, suppress(OSError):
            while line := file.readline():
                method, path, headers = *line.decode().split()[:2], {}
                while (header := file.readline().decode().strip()) != "":
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                body = file.read(int(headers.get("content-length", 0)))
                self.released.wait(30)
                self.received.append(ReceivedCall(method, path, headers.get("content-type", ""), body))
                prepared = self.responses.get(path, OK)
                if isinstance(prepared, list):
                    prepared = prepared.pop(0) if prepared else OK
                if prepared == END:
                    return
                size = 1 if prepared == CHUNKED else len(prepared)
                for start in range(0, 0 if prepared == SILENT else len(prepared), size):
                    connected.sendall(prepared[start : start + size])
                if prepared in (CLOSE, UNTIL_CLOSE):
                    # An unread request would reset the connection, and the client could lose the response.
                    connected.shutdown(socket.SHUT_WR)
                    while file.read(4096):
                        pass
                    return


def _connect(name: str, port: int, seconds: float) -> socket.socket:
    return socket.create_connection((name, port), timeout=seconds)


@contextmanager
def prepared_server(tls: Path | None = None) -> Iterator[PreparedServer]:
    """Run the server on loopback for the duration of the block."""
    server = PreparedServer(tls)
    try:
        yield server
    finally:
        server.released.set()
        server.listener.close()
