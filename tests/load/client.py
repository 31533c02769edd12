"""A small HTTP client with little overhead, so that the server is measured even if both share a machine.

Connections are kept open and send one request at a time; a connection that the server has closed is opened again. A
request without a response has status 0. The client does not retry requests; this is left to the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

PATIENCE_SECONDS = 60.0
_MOST_TRIES = 60


class Answer(msgspec.Struct, frozen=True):
    """A response. If there was none, `status` is 0 and `body` contains the reason. Times are in seconds since 1970."""

    status: int
    headers: dict[str, str]
    body: bytes
    sent_at: float
    took_seconds: float

    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def outcome(self) -> str:
        """Return the class of the response for reports: the status, and the code of a problem document."""
        if self.status < 400:
            return str(self.status) if self.status else f"no answer: {self.body.decode()}"
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return f"{self.status} {self.document()['code']}"
        return str(self.status)


class Connection:
    """One connection to the server, opened at its first use."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self._where = host, port
        self._head = f"Host: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(
        self, method: str, path: str, document: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request and wait for its response."""
        body = b"" if document is None else msgspec.json.encode(document)
        lines = [f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n"]
        lines += ["Content-Type: application/json\r\n"] if body else []
        lines += [f"{name}: {value}\r\n" for name, value in (headers or {}).items()]
        message = "".join([*lines, "\r\n"]).encode() + body
        sent_at, began = time.time(), time.perf_counter()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                status, answered, text = await self._exchange(message)
        except (OSError, EOFError, ValueError) as error:  # a timeout is an OSError
            await self.close()
            return Answer(0, {}, type(error).__name__.encode(), sent_at, time.perf_counter() - began)
        if answered.get("connection", "").lower() == "close":
            await self.close()
        return Answer(status, answered, text, sent_at, time.perf_counter() - began)

    async def _exchange(self, message: bytes) -> tuple[int, dict[str, str], bytes]:
        if self._streams is not None and self._streams[0].at_eof():
            await self.close()
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._where)
        reader, writer = self._streams
        writer.write(message)
        first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return int(first.split(" ", 2)[1]), headers, body

    async def close(self) -> None:
        if self._streams is not None:
            writer = self._streams[1]
            self._streams = None
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class Server(msgspec.Struct, frozen=True):
    """Address of a control plane, and a token that may submit, read and act on clusters."""

    host: str
    port: int
    token: str

    def connection(self) -> Connection:
        return Connection(self.host, self.port, self.token)


async def pages(connection: Connection, path: str) -> list[Any]:
    """Return all items of a list, page by page. If a page gets no response, the request is repeated for a while.

    Raises: AssertionError if a page gets no response.
    """
    return [item async for page in _pages(connection, path) for item in page]


async def _pages(connection: Connection, path: str) -> Any:
    following: str | None = path
    while following:
        for _ in range(_MOST_TRIES):
            answer = await connection.ask("GET", following)
            if answer.status not in (0, 503):
                break
            await asyncio.sleep(1)
        assert answer.status == 200, (following, answer.outcome)
        document = answer.document()
        yield document["items"]
        following = document["next"]


def percentiles(seconds: list[float]) -> Iterator[tuple[str, float]]:
    """Return the percentiles of durations in milliseconds; empty without durations."""
    if seconds:
        ordered = sorted(seconds)
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)):
            # nearest rank: the smallest value that is at least as large as this share of the values
            rank = max(0, -(-len(ordered) * share // 1) - 1)
            yield name, round(1000 * ordered[int(rank)], 2)
