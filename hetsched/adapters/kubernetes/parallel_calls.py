"""Calls to one API server that one thread has in flight on several connections.

A thread for each call would compete with the informer thread for the interpreter. Here the informer thread itself sends
requests and receives the responses later. A connection carries up to `DEPTH` requests, so that the API server has work
while the informer thread decides pods; it answers them in their order.
If a connection fails, the outcome of its calls is unknown. If the server has announced the end of the connection with a
response, it does not process the requests after that one.
Source: RFC 9112, sections 9.3.2 and 9.6. See docs/adr/0030-parallel-calls.md.
"""

from __future__ import annotations

import selectors
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator

from .api import NOT_PROCESSED, READ_SECONDS, Api, ApiFailure
from .wire import READ_BYTES, Reader, Wire, WireConnection, WireError, WireResponse

CONNECTIONS = 16
DEPTH = 8
CHECK_SECONDS = 1.0
_WAIT = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)

Done = Callable[[ApiFailure | None], None]


class PipelinedConnection:
    """One connection with its unsent bytes and its calls without a response, in the order of their requests."""

    def __init__(self, wire: Wire, connection: WireConnection) -> None:
        self.wire = wire
        self.connection = connection
        self.unsent = b""
        self.calls: deque[tuple[Done, float]] = deque()
        self._reader: Reader | None = None
        connection.socket.setblocking(False)

    def flush(self) -> None:
        """Send as many bytes as the socket accepts. Raises: OSError."""
        try:
            while self.unsent:
                self.unsent = self.unsent[self.connection.socket.send(self.unsent) :]
        except _WAIT:
            return

    def receive(self) -> Iterator[WireResponse]:
        """Yield the responses that have arrived; the caller removes the call of each. Raises: OSError, ValueError."""
        try:
            data = self.connection.socket.recv(READ_BYTES)
        except _WAIT:  # for example a TLS session ticket
            return
        if not data and self._reader is None:
            raise ValueError("the server closed the connection")
        while self.calls:
            try:
                if self._reader is None:
                    self.connection.rest += data
                    self._reader = self.connection.read("POST")
                    next(self._reader)
                else:
                    self._reader.send(data)
            except StopIteration as end:
                self._reader, data = None, b""
                yield end.value
            else:
                return
        if data or self.connection.rest:
            raise ValueError("the server sent more than one response to a request")


class ParallelCalls:
    """POST calls of one thread to one API server. Connections are opened by other calls of `api` and taken from it."""

    def __init__(self, api: Api) -> None:
        self.in_flight = 0
        self._api = api
        self._pipelines: list[PipelinedConnection] = []
        self._selector = selectors.DefaultSelector()
        self._checked_at = time.monotonic()

    @property
    def has_room(self) -> bool:
        """Return False if all connections are in use and carry as many calls as they may."""
        return len(self._pipelines) < CONNECTIONS or any(len(one.calls) < DEPTH for one in self._pipelines)

    def start(self, path: str, body: bytes, done: Done, *, shares: bool = False) -> bool:
        """Add a POST, which `advance` sends; `done` is called with None or the failure of the call.

        Return False if no connection is idle and fewer than `CONNECTIONS` are open: the caller makes another call of
        `api`, which opens one. With `shares`, the call uses a connection that carries other calls, if there is one.
        Raises: ApiFailure, ValueError for a call that is not made.
        """
        request = self._api.request("POST", path, body)
        pipeline = self._next_pipeline(shares)
        if pipeline is None:
            return False
        pipeline.unsent += request
        pipeline.calls.append((done, time.monotonic()))
        self.in_flight += 1
        return True

    def advance(self, seconds: float = 0.0) -> None:
        """Send what was added, and receive what has arrived; wait at most `seconds` for the first response."""
        for pipeline in [one for one in self._pipelines if one.unsent]:
            try:
                pipeline.flush()
            except OSError as error:
                self._fail(pipeline, error)
        ready = self._selector.select(seconds)
        while ready:
            for key, _ in ready:
                self._receive(key.data)
            ready = self._selector.select(0)  # a TLS connection returns one response at a time
        now = time.monotonic()
        if now - self._checked_at > CHECK_SECONDS:
            self._checked_at = now
            for pipeline in [one for one in self._pipelines if one.calls and now - one.calls[0][1] > READ_SECONDS]:
                self._fail(pipeline, TimeoutError(f"no response within {READ_SECONDS:.0f} s"))

    def close(self) -> None:
        """Close all connections; the outcome of calls in flight stays unknown, and `done` is not called."""
        for pipeline in self._pipelines:
            pipeline.calls.clear()
            pipeline.connection.close()
        self.in_flight = 0
        self._pipelines.clear()
        self._selector.close()

    def _next_pipeline(self, shares: bool) -> PipelinedConnection | None:
        wire = self._api.wire
        for old in [one for one in self._pipelines if one.wire is not wire and not one.calls]:
            self._drop(old)
        pipelines = [one for one in self._pipelines if one.wire is wire and len(one.calls) < DEPTH]
        shortest = min(pipelines, key=lambda one: len(one.calls), default=None)
        if shortest is not None and not shortest.calls:
            return shortest
        if len(self._pipelines) < CONNECTIONS:
            if connection := wire.take_idle():
                return self._add(wire, connection)
            return shortest if shares else None
        return shortest

    def _add(self, wire: Wire, connection: WireConnection) -> PipelinedConnection:
        pipeline = PipelinedConnection(wire, connection)
        self._pipelines.append(pipeline)
        self._selector.register(connection.socket, selectors.EVENT_READ, pipeline)
        return pipeline

    def _receive(self, pipeline: PipelinedConnection) -> None:
        try:
            for response in pipeline.receive():
                done, _ = pipeline.calls.popleft()
                self.in_flight -= 1
                done(self._failure(response))
                if not pipeline.connection.reusable:
                    self._fail(pipeline, None)
                    return
        except (OSError, ValueError) as error:
            self._fail(pipeline, error)

    def _failure(self, response: WireResponse) -> ApiFailure | None:
        try:
            self._api.accepted("POST", response)
        except ApiFailure as failure:
            return failure
        return None

    def _fail(self, pipeline: PipelinedConnection, error: Exception | None) -> None:
        """Close a connection; without an error, the server has announced its end with the last response."""
        self._drop(pipeline)
        while pipeline.calls:
            done, _ = pipeline.calls.popleft()
            self.in_flight -= 1
            if error is None:
                done(ApiFailure(0, NOT_PROCESSED, "the API server closed the connection before it read this request"))
            else:
                done(self._api.failed("POST", WireError(str(error) or type(error).__name__)))

    def _drop(self, pipeline: PipelinedConnection) -> None:
        self._pipelines.remove(pipeline)
        self._selector.unregister(pipeline.connection.socket)
        pipeline.connection.close()
