"""HTTP handler of Django: each request runs in one thread, in one call, on a connection that stays open.

Django's own ASGI handler gives every request its own thread and database connection, and switches between loop and
thread for each middleware, which on SQLite takes more processor time than the request itself. All middleware and views
here are synchronous, so a request is one call in a pool of a few threads, which keep their connections (`CONN_MAX_AGE`;
PostgreSQL has its pool). Long-polling requests and probes run in a second pool, so that they and short requests do not
wait for each other. The many threads of the second pool do not keep connections. A response is closed in its thread
before it is sent; a streamed response is closed after its last part, in the thread that produced its parts. If all
threads are busy, a request's waiting time is stored in its scope (`waited_seconds`), and `web.api.rates` rejects
requests that waited too long. From the first request on, background threads send live events and webhooks and refresh
counts, so requests do not wait for this work. A large body is read only after the credential of its request was checked
(`body_gate`).
Invariant: a thread never starts a second request before the first one returned its connection.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from typing import Any
from urllib.parse import unquote_plus

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.db import close_old_connections, connections
from django.urls import Resolver404, resolve, set_script_prefix

from hetsched.journal import publish
from hetsched.placement import dispatch
from hetsched.placement.queries import pod_counts

from .bodies import RequestBody, UnreadBody, send_and_drain
from .middleware import QUIET_PATHS, BodyRequested

# More threads would only compete for the interpreter, the single writer of SQLite, or PostgreSQL's pool of ten.
WORKING_THREADS = 8
# More than all requests that may wait at the same time (`MOST_WAITING` of workloads and of previews; further requests
# are answered immediately), so that probes always find a free thread.
WAITING_THREADS = 320


class ThreadedHandler(ASGIHandler):
    """ASGI application that runs Django in threads."""

    def __init__(self) -> None:
        BaseHandler.__init__(self)  # the parent class would load asynchronous middleware
        self.load_middleware()
        import_module(settings.ROOT_URLCONF)  # here and not during the first request of each process
        self._working = ThreadPoolExecutor(WORKING_THREADS, "request")
        self._waiting = ThreadPoolExecutor(WAITING_THREADS, "waiting")
        self._working_count = 0  # requests in the working threads and their queue; modified by the event loop only

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        _start_threads()
        body = RequestBody(scope, receive)
        try:
            await body.read_first()
            if not body.complete:
                early = await self._run_working(scope, UnreadBody())
                if not isinstance(early, BodyRequested):
                    body.close()
                    await self._send(early, send_and_drain(send, receive))
                    return
                if early.refused:
                    raise early.refused
                await body.read_rest()
            waits = _may_wait(scope)
            response = await (self._run_waiting(scope, body.file) if waits else self._run_working(scope, body.file))
            await self._send(response, send)
        except RequestAborted:
            return
        finally:
            body.close()

    async def _send(self, response: Any, send: Any) -> None:
        if not response.streaming:
            await self.send_response(response, send)
            return
        async with ThreadSensitiveContext():
            try:
                await self.send_response(response, send)
            finally:
                await sync_to_async(response.close)()

    async def _run_waiting(self, scope: Any, body: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._waiting, self._answer, scope, body, True)

    async def _run_working(self, scope: Any, body: Any) -> Any:
        crowded, came_at = self._working_count >= WORKING_THREADS, time.monotonic()

        def answer() -> Any:
            scope["waited_seconds"] = time.monotonic() - came_at if crowded else 0.0
            return self._answer(scope, body, False)

        self._working_count += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._working, answer)
        finally:
            self._working_count -= 1

    def _answer(self, scope: Any, body: Any, waits: bool) -> Any:
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=type(self), scope=scope)
        response: Any
        request, response = self.create_request(scope, body)
        if request is not None:
            if isinstance(body, UnreadBody):
                request.body_awaited = True  # type: ignore[attr-defined]
                request._dont_enforce_csrf_checks = True  # type: ignore[attr-defined]  # see `body_gate`
            response = self.get_response(request)
            response._handler_class = type(self)
        if response.streaming:
            close_old_connections()
        else:
            response.close()
        if waits:
            connections.close_all()
        return response


@cache
def _start_threads() -> None:
    publish.start_background_sender()
    dispatch.send_in_background()
    pod_counts.batch_all_counts()


def _may_wait(scope: Any) -> bool:
    """Return whether a request is a probe, or reads a REST view with the parameter `wait`, in any URL encoding."""
    if scope["path"] in QUIET_PATHS:
        return True
    if scope["method"] not in ("GET", "HEAD") or "wait=" not in unquote_plus(scope["query_string"].decode("latin-1")):
        return False
    try:
        view = resolve(scope["path"]).func
    except Resolver404:
        return False
    return "wait" in getattr(getattr(view, "cls", None), "queries", ())
