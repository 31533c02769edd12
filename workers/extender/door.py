"""The extender's door: HTTP/1.1 over TLS, for holders of listed client certificates alone.

Problem: whoever reaches this port could book and bind, so nobody may who did not prove who he is.
Rule: TLS 1.2 or later with a client certificate of our own authority, checked in the handshake; then its common name or
one of its DNS names must be on the list, which also says for which cluster it speaks. All else is refused before a body
is read: a wrong path, method, content type or length. Certificates are read again once their files change.
Every refusal is `application/problem+json` with a stable code.
Invariant: an unlisted caller learns its refusal and nothing else.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from typing import Any, NamedTuple

import msgspec
import structlog

from hetsched.contracts.errors import InputError

from .figures import CALLS, TURNED_AWAY

PREFIX = "/extender/"
HANDSHAKE_SECONDS = 5.0
BODY_SECONDS = 10.0
IDLE_SECONDS = 120.0
MOST_CONNECTIONS = 128
FILES = ("tls.crt", "tls.key", "ca.crt")
log = structlog.get_logger(__name__)


class Answer(NamedTuple):
    """A body to send, and whether it says no."""

    body: bytes
    refused: bool = False


Verb = Callable[[str, bytes], Answer]  # cluster, body; raises InputError


class Refused(Exception):
    """Answer with this problem and do nothing else."""

    def __init__(self, status: HTTPStatus, code: str, detail: str, *, hint: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.hint = hint


class Problem(msgspec.Struct, omit_defaults=True):
    """A refusal, as RFC 9457 has it."""

    title: str
    status: int
    code: str
    detail: str
    hint: str = ""
    type: str = msgspec.field(default="about:blank")


class Certificates:
    """The server's own pair and the authority of its clients: `tls.crt`, `tls.key` and `ca.crt` of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: tuple[int, ...] = ()
        self._context: ssl.SSLContext | None = None
        self._lock = threading.Lock()
        self.context()

    def context(self) -> ssl.SSLContext:
        """Return how connections are secured now; files that are half changed leave it as it was.

        Raises: InputError `CertificatesUnusable` where there was nothing before.
        """
        with self._lock:
            try:
                seen = tuple((self._folder / name).stat().st_mtime_ns for name in FILES)
                if self._context is None or seen != self._seen:
                    self._context, self._seen = self._read(), seen
            except (OSError, ssl.SSLError) as error:
                if self._context is None:
                    hint = "`hetsched certs` makes them, HETSCHED_EXTENDER_CERTIFICATES says where they are"
                    message = f"{', '.join(FILES)} cannot be read: {getattr(error, 'strerror', None) or error}"
                    raise InputError("CertificatesUnusable", message, place=str(self._folder), hint=hint) from None
                log.warning("changed certificates cannot be read", reason=str(error))
            return self._context

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        certificate, key, authority = (self._folder / name for name in FILES)
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
        return context


class Door(ThreadingHTTPServer):
    """Listens, with a thread for each connection; `clients` maps names of certificates to clusters."""

    daemon_threads = True
    request_queue_size = 128

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
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(address, Handler)

    def get_request(self) -> tuple[socket, Any]:
        plain, address = super().get_request()
        plain.settimeout(HANDSHAKE_SECONDS)
        # The handshake is the connection's own thread's: a silent caller keeps nobody waiting.
        return self.certificates.context().wrap_socket(plain, server_side=True, do_handshake_on_connect=False), address

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.info("a connection ended", client=client_address[0], exc_info=True)


class Handler(BaseHTTPRequestHandler):
    """One connection; its certificate is looked at once."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "hetsched", ""
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Door
    cluster: str | None = None

    def handle(self) -> None:
        try:
            self.request.do_handshake()
        except (OSError, ValueError) as error:
            TURNED_AWAY.inc()
            log.info("no handshake", client=self.client_address[0], reason=str(error)[:200])
            return
        self.request.settimeout(IDLE_SECONDS)
        names = names_of(self.request.getpeercert() or {})
        self.cluster = next((self.server.clients[name] for name in names if name in self.server.clients), None)
        if self.cluster is None:
            TURNED_AWAY.inc()
            log.warning("a client is not on the list", client=self.client_address[0], names=names[:5])
        super().handle()

    def finish(self) -> None:
        with suppress(OSError):  # nobody listens any more
            super().finish()

    def do_POST(self) -> None:
        verb = self.path.removeprefix(PREFIX)
        began, outcome = time.perf_counter(), ""
        try:
            body = self._body()
            if body is None:
                return
            outcome = "ok"
            answer = self.server.verbs[verb](self.cluster or "", body)
            if answer.refused:
                outcome = "refused"
            self._send(HTTPStatus.OK, answer.body, "application/json")
        except Refused as refused:
            self._refuse(refused)
        except InputError as refusal:
            wrong = refusal.code == "ExtenderArgsInvalid"
            outcome = "wrong" if wrong else "refused"
            status = HTTPStatus.BAD_REQUEST if wrong else HTTPStatus.SERVICE_UNAVAILABLE
            self._refuse(Refused(status, refusal.code, refusal.message, hint=refusal.hint), close=False)
        finally:
            if outcome:
                CALLS.labels(verb, outcome).observe(time.perf_counter() - began)

    def _body(self) -> bytes | None:
        """Return the body of a call that may be answered, None where it did not come whole.

        Raises: Refused.
        """
        if self.cluster is None:
            message = "no name of this certificate is on the list of clients"
            raise Refused(HTTPStatus.FORBIDDEN, "ClientNotAllowed", message)
        if not self.path.startswith(PREFIX) or self.path.removeprefix(PREFIX) not in self.server.verbs:
            raise Refused(HTTPStatus.NOT_FOUND, "NotFound", f"POST {PREFIX}VERB: {', '.join(self.server.verbs)}")
        if self.headers.get_content_type() != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", "send application/json")
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit() and len(length) < 12):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "LengthRequired", "send a body with its Content-Length")
        if int(length) > self.server.most_bytes:
            hint = "Set nodeCacheCapable: true, or raise HETSCHED_EXTENDER_BYTES"
            message = f"at most {self.server.most_bytes} bytes"
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "BodyTooLarge", message, hint=hint)
        self.request.settimeout(BODY_SECONDS)
        body: bytes = self.rfile.read(int(length))
        self.request.settimeout(IDLE_SECONDS)
        self.close_connection = self.close_connection or len(body) < int(length)
        return body if len(body) == int(length) else None

    def _refuse(self, refused: Refused, *, close: bool = True) -> None:
        """Answer with a problem; where the body was not read the connection ends."""
        self.close_connection = self.close_connection or close
        status = refused.status
        problem = Problem(status.phrase, status.value, refused.code, str(refused)[:1000], refused.hint)
        self._send(status, msgspec.json.encode(problem), "application/problem+json")

    def _send(self, status: HTTPStatus, body: bytes, content: str) -> None:
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
        """Refuse what the parser of HTTP itself does not take, and every method but POST."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self._refuse(Refused(status, status.name.title().replace("_", ""), message or status.phrase))

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("call", client=self.client_address[0], said=format % args)


def names_of(certificate: Mapping[str, Any]) -> list[str]:
    """Return the common name and the DNS names of a certificate that was verified."""
    subject = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return [*subject, *(value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")]
