"""The extender's server: HTTP/1.1 over mutual TLS, only for listed client certificates.

A client of this port can reserve resources and bind pods, so every client must authenticate.
The handshake requires TLS 1.2 or later and a client certificate of the configured authority. Then the certificate's
common name or one of its DNS names must be on the list, which also maps it to a cluster. A wrong path, method, content
type or length is rejected before the body is read. `connections` limits the connections of callers without such a
certificate. Certificates are reloaded when their files change.
Every rejection is `application/problem+json` with a stable code.
Invariant: an unlisted caller receives its rejection and nothing else.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socket import socket
from typing import Any, NamedTuple

import msgspec
import structlog

from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, joined

from .bounded_server import BoundedServer
from .connections import HANDSHAKE_SECONDS, IDLE_SECONDS, Connections, Phase
from .metrics import CALLS, TURNED_AWAY

PREFIX = "/extender/"
FILES = ("tls.crt", "tls.key", "ca.crt")
log = structlog.get_logger(__name__)


class ExtenderResponse(NamedTuple):
    """A response body; `refused` is True if it contains a rejection."""

    body: bytes
    refused: bool = False


Verb = Callable[[str, bytes], ExtenderResponse]  # arguments: cluster and body; raises InputError


class CallRefused(Exception):
    """Rejection of a request, with the content of the problem document."""

    def __init__(self, status: HTTPStatus, code: str, detail: str, *, hint: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.hint = hint


class CallProblem(msgspec.Struct, omit_defaults=True):
    """A problem document (RFC 9457)."""

    title: str
    status: int
    code: str
    detail: str
    hint: str = ""
    type: str = msgspec.field(default="about:blank")


class Certificates:
    """The server's certificate and the client authority: `tls.crt`, `tls.key` and `ca.crt` of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: tuple[int, ...] = ()
        self._context: ssl.SSLContext | None = None
        self._lock = threading.Lock()
        self.context()

    def context(self) -> ssl.SSLContext:
        """Return the current TLS context; while the files are inconsistent, keep the previous one.

        Raises: InputError `CertificatesUnusable` if there is no previous context.
        """
        with self._lock:
            try:
                seen = tuple((self._folder / name).stat().st_mtime_ns for name in FILES)
                if self._context is None or seen != self._seen:
                    self._context, self._seen = self._read(), seen
            except (OSError, ssl.SSLError) as error:
                if self._context is None:
                    hint = (
                        "Run `hetsched certs` and set HETSCHED_EXTENDER_CERTIFICATES to the folder of the certificates"
                    )
                    message = Message(
                        "{name} cannot be read: {text}",
                        name=joined(", ", FILES),
                        text=getattr(error, "strerror", None) or str(error),
                    )
                    raise InputError("CertificatesUnusable", message, place=str(self._folder), hint=hint) from None
                log.warning("new certificates cannot be read", reason=str(error))
            return self._context

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        certificate, key, authority = (self._folder / name for name in FILES)
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
        return context


class TlsServer(BoundedServer):
    """TLS server with one thread per connection; `clients` maps certificate names to clusters."""

    def __init__(
        self,
        address: tuple[str, int],
        certificates: Certificates,
        clients: Mapping[str, str],
        verbs: Mapping[str, Verb],
        most_bytes: int,
    ) -> None:
        self.certificates = certificates
        self.clients = clients
        self.verbs = verbs
        self.most_bytes = most_bytes
        self.connections = Connections()
        super().__init__(address, Handler, self.connections)

    def get_request(self) -> tuple[socket, Any]:
        plain, address = super().get_request()
        plain.settimeout(HANDSHAKE_SECONDS)
        # The handshake runs in the connection's own thread, so that a silent caller does not block other connections.
        return self.certificates.context().wrap_socket(plain, server_side=True, do_handshake_on_connect=False), address


class Handler(BaseHTTPRequestHandler):
    """The handler of one connection; the client certificate is checked once per connection."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "hetsched", ""
    disable_nagle_algorithm = True
    wbufsize = -1
    server: TlsServer
    cluster: str | None = None

    def handle(self) -> None:
        try:
            self.request.do_handshake()
        except (OSError, ValueError) as error:
            TURNED_AWAY.inc()
            log.info("TLS handshake failed", client=self.client_address[0], reason=str(error)[:200])
            return
        names = names_of(self.request.getpeercert() or {})
        client = next((name for name in names if name in self.server.clients), None)
        if client is None:  # the rejection is sent within the deadline of an unverified connection
            TURNED_AWAY.inc()
            log.warning("client is not allowed", client=self.client_address[0], names=names[:5])
        elif self.server.connections.verify(self.request, client):
            self.cluster = self.server.clients[client]
            self.request.settimeout(IDLE_SECONDS)
        else:
            TURNED_AWAY.inc()
            log.warning("connection limit of verified clients reached", client=self.client_address[0], names=names[:5])
            return
        super().handle()

    def handle_one_request(self) -> None:
        super().handle_one_request()
        self.server.connections.enter(self.request, Phase.IDLE)

    def parse_request(self) -> bool:
        self.server.connections.enter(self.request, Phase.TRANSFER)
        return super().parse_request()

    def finish(self) -> None:
        with suppress(OSError):  # The peer may have closed the connection.
            super().finish()

    def do_POST(self) -> None:
        verb = self.path.removeprefix(PREFIX)
        began, outcome = time.perf_counter(), ""
        try:
            body = self._body()
            if body is None:
                return
            outcome = "ok"
            self.server.connections.enter(self.request, Phase.CALL)
            answer = self.server.verbs[verb](self.cluster or "", body)
            if answer.refused:
                outcome = "refused"
            self._send(HTTPStatus.OK, answer.body, "application/json")
        except CallRefused as refused:
            self._refuse(refused)
        except InputError as refusal:
            wrong = refusal.code == "ExtenderArgsInvalid"
            outcome = "wrong" if wrong else "refused"
            status = HTTPStatus.BAD_REQUEST if wrong else HTTPStatus.SERVICE_UNAVAILABLE
            self._refuse(CallRefused(status, refusal.code, refusal.message, hint=refusal.hint), close=False)
        finally:
            if outcome:
                CALLS.labels(verb, outcome).observe(time.perf_counter() - began)

    def _body(self) -> bytes | None:
        """Return the body of a permitted request, or None if it is incomplete.

        Raises: CallRefused.
        """
        if self.cluster is None:
            message = "the client certificate does not contain an allowed name"
            raise CallRefused(HTTPStatus.FORBIDDEN, "ClientNotAllowed", message)
        if not self.path.startswith(PREFIX) or self.path.removeprefix(PREFIX) not in self.server.verbs:
            raise CallRefused(HTTPStatus.NOT_FOUND, "NotFound", f"POST {PREFIX}VERB: {', '.join(self.server.verbs)}")
        if self.headers.get_content_type() != "application/json":
            raise CallRefused(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", "use Content-Type application/json"
            )
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit() and len(length) < 12):
            raise CallRefused(HTTPStatus.LENGTH_REQUIRED, "LengthRequired", "send a body with Content-Length")
        if int(length) > self.server.most_bytes:
            hint = "Set nodeCacheCapable: true, or raise HETSCHED_EXTENDER_BYTES"
            message = f"the body is larger than {self.server.most_bytes} bytes"
            raise CallRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "BodyTooLarge", message, hint=hint)
        body: bytes = self.rfile.read(int(length))
        self.close_connection = self.close_connection or len(body) < int(length)
        return body if len(body) == int(length) else None

    def _refuse(self, refused: CallRefused, *, close: bool = True) -> None:
        """Respond with a problem document; close the connection if the body was not read."""
        self.close_connection = self.close_connection or close
        status = refused.status
        problem = CallProblem(status.phrase, status.value, refused.code, str(refused)[:1000], refused.hint)
        self._send(status, encode(problem), "application/problem+json")

    def _send(self, status: HTTPStatus, body: bytes, content: str) -> None:
        self.server.connections.enter(self.request, Phase.TRANSFER)
        self.send_response(status)
        self.send_header("Content-Type", content)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Reject requests that the HTTP parser does not accept, and all methods other than POST."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self._refuse(CallRefused(status, status.name.title().replace("_", ""), message or status.phrase))

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("call", client=self.client_address[0], said=format % args)


def names_of(certificate: Mapping[str, Any]) -> list[str]:
    """Return the common name and the DNS names of a verified certificate."""
    subject = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return [*subject, *(value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")]
