"""An API server for tests: serves prepared lists page by page and records the calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from hetsched.adapters.kubernetes.resources import OPTIONAL, REQUIRED
from tests.server_thread import running

Plain = dict[str, Any]


class ReceivedCall(msgspec.Struct, frozen=True):
    """One received call."""

    method: str
    path: str
    query: dict[str, list[str]]
    authorization: str


class ListServer:
    """Lists of objects by path. `denied` maps a path to a status; `expired` paths answer one 410 for a later page."""

    def __init__(self, objects: list[Plain]) -> None:
        self.calls: list[ReceivedCall] = []
        self.denied: dict[str, int] = {}
        self.expired: set[str] = set()
        self.lists: dict[str, list[Plain]] = {kind.path(): [] for kind in REQUIRED}
        paths = {(kind.api_version, kind.kind): kind.path() for kind in (*REQUIRED, *OPTIONAL)}
        for one in objects:
            bare = {name: value for name, value in one.items() if name not in ("apiVersion", "kind")}
            self.lists.setdefault(paths[one["apiVersion"], one["kind"]], []).append(bare)
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def _serve(self) -> None:
                url = urlsplit(self.path)
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                call = ReceivedCall(
                    self.command, url.path, parse_qs(url.query), self.headers.get("Authorization") or ""
                )
                owner.calls.append(call)
                status, answer = owner.answer(call)
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, call: ReceivedCall) -> tuple[int, Plain]:
        denied = self.denied.get(call.path)
        if denied is None and call.path not in self.lists:
            denied = 404
        if denied is not None:
            return denied, _status(denied)
        at = int(call.query.get("continue", ["0"])[0])
        if at and call.path in self.expired:
            self.expired.discard(call.path)
            return 410, _status(410)
        items, limit = self.lists[call.path], int(call.query["limit"][0])
        meta = {"resourceVersion": "1"}
        if at + limit < len(items):
            meta["continue"] = str(at + limit)
        return 200, {"kind": "List", "metadata": meta, "items": items[at : at + limit]}

    def kubeconfig(self, user: Mapping[str, Any] | None = None) -> Plain:
        """Return a kubeconfig for this server."""
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
            "clusters": [{"name": "lab", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": dict(user or {})}],
        }


def _status(code: int) -> Plain:
    return {
        "kind": "Status",
        "reason": {403: "Forbidden", 404: "NotFound", 410: "Expired"}.get(code, "Error"),
        "code": code,
    }


@contextmanager
def serving(objects: list[Plain]) -> Iterator[ListServer]:
    """Serve these objects on loopback for the duration of the block."""
    listening = ListServer(objects)
    with running(listening.server):
        yield listening
