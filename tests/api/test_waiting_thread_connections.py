"""Hundreds of threads may wait; none of them keeps a database connection open.

Only reads may wait: a parameter of the address must not start hundreds of concurrent password checks.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from django.db import connections
from django.http import HttpResponse

from hetsched.project.handler import ThreadedHandler


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("method", "path", "query", "kept"),
    [
        ("GET", "/api/v1/workloads/w/", b"wait=1", False),
        ("GET", "/api/v1/workloads/w/", b"%77ait=1", False),
        ("HEAD", "/api/v1/workloads/w/", b"wait=1", False),
        ("GET", "/api/v1/workloads/w/", b"", True),
        ("POST", "/api/v1/workloads/w/", b"wait=1", True),
        ("GET", "/login/", b"wait=1", True),
        ("GET", "/nodes/", b"wait=1", True),
        ("GET", "/api/v1/nodes/", b"wait=1", True),
        ("GET", "/nowhere", b"wait=1", True),
        ("GET", "/livez", b"", False),
    ],
)
def test_only_working_threads_keep_connections(
    method: str, path: str, query: bytes, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WORKING_THREADS", "WAITING_THREADS"):
        monkeypatch.setattr(f"hetsched.project.handler.{name}", 1)
    # A server starts its threads at its first request; they would keep running during all later tests of this process.
    monkeypatch.setattr("hetsched.project.handler._start_threads", lambda: None)
    handler = ThreadedHandler()
    closed: list[str] = []

    def get_response(_request: Any) -> HttpResponse:
        own = connections["default"]
        own.ensure_connection()
        # An in-memory database is never really closed.
        monkeypatch.setattr(own, "close", lambda: closed.append(threading.current_thread().name))
        return HttpResponse("here")

    handler.get_response = get_response  # type: ignore[method-assign]
    scope = {
        "type": "http", "method": method, "path": path, "query_string": query, "headers": [],
        "http_version": "1.1", "scheme": "http", "client": ("192.0.2.1", 1), "server": ("testserver", 80),
    }  # fmt: skip
    sent: list[Any] = []

    async def ask() -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await handler(scope, receive, send)

    asyncio.run(ask())
    assert sent[0]["status"] == 200
    assert closed == ([] if kept else ["waiting_0"])
