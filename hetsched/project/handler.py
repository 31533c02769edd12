"""HTTP to Django: each request is answered by one thread, in one turn, on a connection that stays open.

Problem: Django's own ASGI handler gives every request a thread and hence a database connection of its own, and changes
between loop and thread for each middleware; on SQLite that took more processor time than the request itself.
Rule: all middleware and views here are synchronous, so a request is one call in a thread of a fixed few, which keep
their connections (`CONN_MAX_AGE`; PostgreSQL has its pool). A request that may wait for something, and a probe, has
threads of its own kind: neither waits for the other, and these keep no connection, for they are many. An answer is
closed in its thread before it is sent; one that is streamed is closed after its end, in the thread that made its
pieces. A request that found all threads taken knows how long it waited for one (`waited_seconds` of its scope):
`web.api.rates` refuses what comes too late. From the first request on, messages to others and counts that the next
change alters again are told by threads beside: no request waits for them.
Invariant: a thread never takes up a second request before the first one gave back its connection.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.db import close_old_connections, connections
from django.urls import set_script_prefix

from hetsched.journal import publish
from hetsched.placement import dispatch, pod_counts

from .middleware import QUIET_PATHS

# More would only take the interpreter, the one writer of SQLite, or PostgreSQL's pool of ten from each other.
WORKING_THREADS = 8
# More than may wait at once: `?wait=` answers at once when too many do.
WAITING_THREADS = 320


class ThreadedHandler(ASGIHandler):
    """Django as an ASGI application of threads."""

    def __init__(self) -> None:
        BaseHandler.__init__(self)  # the parent's own would load the middleware for a loop
        self.load_middleware()
        import_module(settings.ROOT_URLCONF)  # now, not while the first request of each process waits
        self._working = ThreadPoolExecutor(WORKING_THREADS, "request")
        self._waiting = ThreadPoolExecutor(WAITING_THREADS, "waiting")
        self._in_work = 0  # requests of the working threads, those in their queue among them; changed by the loop alone

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        _begin()
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        try:
            waits = _may_wait(scope)
            response = await (self._at_leisure(scope, body) if waits else self._in_turn(scope, body))
            if not response.streaming:
                await self.send_response(response, send)
                return
            async with ThreadSensitiveContext():
                try:
                    await self.send_response(response, send)
                finally:
                    await sync_to_async(response.close)()
        finally:
            body.close()

    async def _at_leisure(self, scope: Any, body: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._waiting, self._answer, scope, body, True)

    async def _in_turn(self, scope: Any, body: Any) -> Any:
        crowded, came_at = self._in_work >= WORKING_THREADS, time.monotonic()

        def answer() -> Any:
            scope["waited_seconds"] = time.monotonic() - came_at if crowded else 0.0
            return self._answer(scope, body, False)

        self._in_work += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._working, answer)
        finally:
            self._in_work -= 1

    def _answer(self, scope: Any, body: Any, waits: bool) -> Any:
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=type(self), scope=scope)
        response: Any
        request, response = self.create_request(scope, body)
        if request is not None:
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
def _begin() -> None:
    publish.keep_in_background()
    dispatch.keep_in_background()
    pod_counts.keep_counting_seldom()


def _may_wait(scope: Any) -> bool:
    return (b"wait=" in scope["query_string"] and scope["method"] == "GET") or scope["path"] in QUIET_PATHS
