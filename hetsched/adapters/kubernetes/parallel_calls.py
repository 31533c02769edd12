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
LONGEST_RESPONSE = 1 << 20
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
        self._received = 0  # bytes since the last response
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
        self._received += len(data)
        if self._received > LONGEST_RESPONSE:
            raise ValueError(f"the response is larger than {LONGEST_RESPONSE} bytes")
        while self.calls:
            try:
                if self._reader is None:
                    self.connection.rest += data
                    self._reader = self.connection.read("POST")
                    next(self._reader)
                else:
                    self._reader.send(data)
            except StopIteration as end:
                self._reader, data, self._received = None, b"", 0
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

    @property
    def has_room(self) -> bool:
        """Return False if all connections are in use and carry as many calls as they may."""
        return len(self._pipelines) < CONNECTIONS or any(len(one.calls) < DEPTH for one in self._pipelines)

    def start(self, path: str, body: bytes, done: Done) -> bool:
        """Add a POST, which `advance` sends; `done` is called with None or the failure of the call.

        Return False if no connection is idle and fewer than `CONNECTIONS` are open, or if the credential must be
        renewed: the caller makes another call of `api`, which opens a connection and waits for the credential.
        Raises: ApiFailure, ValueError, OSError for a call that is not made.
        """
        pipeline = None if self._api.may_block else self._next_pipeline()
        if pipeline is None:
            return False
        pipeline.unsent += self._api.request("POST", path, body)
        pipeline.calls.append((done, time.monotonic()))
        self.in_flight += 1
        return True

    def advance(self, seconds: float = 0.0) -> None:
        """Send what was added, and receive what has arrived; wait at most `seconds` for the first response."""
        now = time.monotonic()
        for pipeline in [one for one in self._pipelines if one.calls and now - one.calls[0][1] > READ_SECONDS]:
            self._fail(pipeline, TimeoutError(f"no response within {READ_SECONDS:.0f} s"))
        for pipeline in [one for one in self._pipelines if one.unsent]:
            try:
                pipeline.flush()
            except OSError as error:
                self._fail(pipeline, error)
        ready = self._selector.select(seconds)
        for _ in range(DEPTH):  # a TLS connection returns one record at a time
            for key, _ in ready:
                self._receive(key.data)
            ready = self._selector.select(0)
            if not ready:
                break

    def close(self) -> None:
        """Close all connections; the outcome of calls in flight stays unknown, and `done` is not called."""
        for pipeline in self._pipelines:
            pipeline.calls.clear()
            pipeline.connection.close()
        self.in_flight = 0
        self._pipelines.clear()
        self._selector.close()

    def _next_pipeline(self) -> PipelinedConnection | None:
        wire = self._api.wire
        for old in [one for one in self._pipelines if one.wire is not wire and not one.calls]:
            self._drop(old)
        pipelines = [one for one in self._pipelines if one.wire is wire and len(one.calls) < DEPTH]
        shortest = min(pipelines, key=lambda one: len(one.calls), default=None)
        if len(self._pipelines) >= CONNECTIONS or (shortest is not None and not shortest.calls):
            return shortest
        connection = wire.take_idle()
        return None if connection is None else self._add(wire, connection)

    def _add(self, wire: Wire, connection: WireConnection) -> PipelinedConnection:
        pipeline = PipelinedConnection(wire, connection)
        self._pipelines.append(pipeline)
        self._selector.register(connection.socket, selectors.EVENT_READ, pipeline)
        return pipeline

    def _receive(self, pipeline: PipelinedConnection) -> None:
        responses = pipeline.receive()
        while True:
            try:
                response = next(responses, None)
            except (OSError, ValueError) as error:
                self._fail(pipeline, error)
                return
            if response is None:
                return
            done, _ = pipeline.calls.popleft()
            self.in_flight -= 1
            done(self._failure(response))
            if not pipeline.connection.reusable:
                is_announced = "close" in response.headers.get("connection", "").lower()
                self._fail(pipeline, None if is_announced else ValueError("the server closed the connection"))
                return

    def _failure(self, response: WireResponse) -> ApiFailure | None:
        try:
            self._api.read_response("POST", response)
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
                done(self._api.count_failure("POST", WireError(str(error) or type(error).__name__)))

    def _drop(self, pipeline: PipelinedConnection) -> None:
        self._pipelines.remove(pipeline)
        self._selector.unregister(pipeline.connection.socket)
        pipeline.connection.close()
