"""Calls to one API server that one thread has in flight on several connections.

A thread for each call would compete with the calling thread for the interpreter. Here the calling thread itself sends
requests and receives the responses later: the informer thread for bindings, and a task for reports of decisions. A
connection carries up to `DEPTH` requests, so that the API server has work while the calling thread does other steps; it
answers them in their order.
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
        self.calls: deque[tuple[Done, float, str]] = deque()  # with the time and the method of each
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
    """Calls with a body of one thread to one API server, on at most `connections` connections (None: `CONNECTIONS`).

    Idle connections are taken from `api`; other calls of `api`, or `open`, open them.
    """

    def __init__(self, api: Api, connections: int | None = None) -> None:
        self.in_flight = 0
        self._api = api
        self._limit = connections
        self._pipelines: list[PipelinedConnection] = []
        self._selector = selectors.DefaultSelector()

    @property
    def has_room(self) -> bool:
        """Return False if all connections are in use and carry as many calls as they may."""
        return self._may_open or any(len(one.calls) < DEPTH for one in self._pipelines)

    def start(
        self, path: str, body: bytes, done: Done, *, method: str = "POST", content: str = "application/json"
    ) -> bool:
        """Add a call, which `advance` sends; `done` is called with None or the failure of the call.

        Return False if no connection is idle and fewer than the limit are open, or if the credential must be renewed:
        the caller calls `open` or makes another call of `api`, which opens a connection and waits for the credential.
        Raises: ApiFailure, ValueError, OSError for a call that is not made.
        """
        pipeline = None if self._api.may_block else self._next_pipeline()
        if pipeline is None:
            return False
        pipeline.unsent += self._api.request(method, path, body, content)
        pipeline.calls.append((done, time.monotonic(), method))
        self.in_flight += 1
        return True

    def open(self) -> None:
        """Wait for a credential that must be renewed, and open a connection below the limit. Raises: ApiFailure."""
        self._api.renew_credential()
        if self._may_open:
            self._add(self._api.wire, self._api.open_connection())

    def advance(self, seconds: float = 0.0) -> None:
        """Send what was added, and receive what has arrived; wait at most `seconds` for the first response."""
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
        now = time.monotonic()
        for pipeline in [one for one in self._pipelines if one.calls and now - one.calls[0][1] > READ_SECONDS]:
            self._fail(pipeline, TimeoutError(f"no response within {READ_SECONDS:.0f} s"))

    def release(self) -> None:
        """Return connections without calls to the wire for later calls, and close the others as `close` does."""
        for idle in [one for one in self._pipelines if not one.calls and one.wire is self._api.wire]:
            self._pipelines.remove(idle)
            self._selector.unregister(idle.connection.socket)
            idle.wire.put_idle(idle.connection)
        self.close()

    def close(self) -> None:
        """Close all connections; the outcome of calls in flight stays unknown, and `done` is not called."""
        for pipeline in self._pipelines:
            pipeline.calls.clear()
            pipeline.connection.close()
        self.in_flight = 0
        self._pipelines.clear()
        self._selector.close()

    @property
    def _may_open(self) -> bool:
        return len(self._pipelines) < (CONNECTIONS if self._limit is None else self._limit)

    def _next_pipeline(self) -> PipelinedConnection | None:
        wire = self._api.wire
        for old in [one for one in self._pipelines if one.wire is not wire and not one.calls]:
            self._drop(old)
        pipelines = [one for one in self._pipelines if one.wire is wire and len(one.calls) < DEPTH]
        shortest = min(pipelines, key=lambda one: len(one.calls), default=None)
        if not self._may_open or (shortest is not None and not shortest.calls):
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
            done, _, method = pipeline.calls.popleft()
            self.in_flight -= 1
            done(self._failure(method, response))
            if not pipeline.connection.reusable:
                is_announced = "close" in response.headers.get("connection", "").lower()
                self._fail(pipeline, None if is_announced else ValueError("the server closed the connection"))
                return

    def _failure(self, method: str, response: WireResponse) -> ApiFailure | None:
        try:
            self._api.read_response(method, response)
        except ApiFailure as failure:
            return failure
        return None

    def _fail(self, pipeline: PipelinedConnection, error: Exception | None) -> None:
        """Close a connection; without an error, the server has announced its end with the last response."""
        self._drop(pipeline)
        while pipeline.calls:
            done, _, method = pipeline.calls.popleft()
            self.in_flight -= 1
            if error is None:
                done(ApiFailure(0, NOT_PROCESSED, "the API server closed the connection before it read this request"))
            else:
                done(self._api.count_failure(method, WireError(str(error) or type(error).__name__)))

    def _drop(self, pipeline: PipelinedConnection) -> None:
        self._pipelines.remove(pipeline)
        self._selector.unregister(pipeline.connection.socket)
        pipeline.connection.close()
