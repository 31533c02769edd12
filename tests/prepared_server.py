"""An API server for tests that sends prepared responses: on each connection, one per request, in order."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

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


CONFLICT = response(409, {"reason": "Conflict", "message": "already bound"})


class PreparedServer:
    """Server with prepared responses by path, `OK` by default; it responds only while `released` is set.

    `CHUNKED` is sent byte by byte. With `tls`, a folder, connections use TLS with a certificate in this folder.
    """

    def __init__(self, tls: Path | None = None) -> None:
        self.responses: dict[str, bytes] = {}
        self.paths: list[str] = []
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
                path, length = line.split()[1].decode(), 0
                while (header := file.readline().strip()) != b"":
                    if header.lower().startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                file.read(length)
                self.released.wait(30)
                self.paths.append(path)
                prepared = self.responses.get(path, OK)
                if prepared == END:
                    return
                size = 1 if prepared == CHUNKED else len(prepared)
                for start in range(0, 0 if prepared == SILENT else len(prepared), size):
                    connected.sendall(prepared[start : start + size])
                if prepared in (CLOSE, UNTIL_CLOSE):
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
