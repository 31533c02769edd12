"""A container registry on loopback with configurable faults."""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hetsched.adapters.oci.wire import AllowedHosts

INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def platform(text: str) -> dict[str, str]:
    return dict(zip(("os", "architecture", "variant"), text.split("/"), strict=False))


class Registry:
    """The served content and the configured faults. `asked` contains every requested path with its Authorization
    header.
    """

    def __init__(self) -> None:
        self.documents: dict[str, tuple[str, bytes]] = {}
        self.asked: list[tuple[str, str]] = []
        self.user = ""  # user that gets tokens; empty: every user
        self.wants_token = False
        self.wants_basic = False
        self.realm = ""
        self.redirect_blobs_to = ""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.trickles = False
        self.stated_digest = ""
        self.host = ""

    @property
    def allowed(self) -> AllowedHosts:
        return AllowedHosts(plain=frozenset({self.host}))

    def image(self, name: str, *platforms: str, media_type: str = INDEX) -> str:
        """Serve `path:tag` as an index of these platforms; return the name to write into a pod."""
        manifests = [
            {"mediaType": MANIFEST, "digest": digest_of(one.encode()), "size": 1, "platform": platform(one)}
            for one in platforms
        ]
        self.push(name, {"schemaVersion": 2, "mediaType": media_type, "manifests": manifests}, media_type)
        return f"{self.host}/{name}"

    def single(self, name: str, one: str) -> str:
        """Serve `path:tag` as a single manifest whose configuration names its platform."""
        path = name.partition(":")[0]
        config = self.push(f"{path}:", platform(one), CONFIG)
        self.push(name, {"schemaVersion": 2, "config": {"mediaType": CONFIG, "digest": config, "size": 1}}, MANIFEST)
        return f"{self.host}/{name}"

    def push(self, name: str, document: Mapping[str, Any], media_type: str) -> str:
        """Serve a document under its digest, and under its tag if it has one; return the digest."""
        path, _, tag = name.partition(":")
        content = json.dumps(document).encode()
        for kind, key in (("manifests", tag), ("manifests", digest_of(content)), ("blobs", digest_of(content))):
            if key:
                self.documents[f"/v2/{path}/{kind}/{key}"] = media_type, content
        return digest_of(content)

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of a GET."""
        self.asked.append((path, authorization))
        if path.startswith("/token"):
            expected = "Basic " + base64.b64encode(self.user.encode()).decode()
            granted = not self.user or authorization == expected
            return (200, {}, b'{"token": "abc"}') if granted else (401, {}, b"{}")
        if self.status:
            return self.status, self.headers, b""
        if self.wants_token and authorization != "Bearer abc":
            realm = self.realm or f"http://{self.host}/token"
            return 401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="test"'}, b""
        if self.wants_basic and not authorization:
            return 401, {"WWW-Authenticate": 'Basic realm="test"'}, b""
        if "/blobs/" in path and self.redirect_blobs_to:
            return 307, {"Location": self.redirect_blobs_to + path}, b""
        if path not in self.documents:
            return 404, {}, b"<script>alert(1)</script>"
        media_type, content = self.documents[path]
        stated = self.stated_digest or digest_of(content)
        return 200, {"Content-Type": media_type, "Docker-Content-Digest": stated}, content


class _Handler(BaseHTTPRequestHandler):
    registry: Registry

    def do_GET(self) -> None:
        status, headers, body = self.registry.answer(self.path, self.headers.get("Authorization", ""))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.registry.trickles:
            for position in range(len(body)):
                self.wfile.write(body[position : position + 1])
                self.wfile.flush()
                time.sleep(0.02)
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            return  # the client disconnected


@contextmanager
def a_registry(*, pair: tuple[Path, Path] | None = None) -> Iterator[Registry]:
    """Serve a registry, over TLS if `pair` contains a certificate and its key."""
    registry = Registry()
    handler = type("Handler", (_Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if pair is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*pair)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    registry.host = f"127.0.0.1:{server.server_address[1]}"
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    serving.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
