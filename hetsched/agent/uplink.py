"""HTTP client of the agent: messages to the control plane, and the responses.

The control plane may be down, slow, or impersonated, and thousands of agents must not reconnect at the same time. One
connection is kept open. A call that fails on it is repeated once on a new connection, which is safe because the server
deduplicates messages by number. Redirects are not followed, a response is read up to a limit, and every call ends in
bounded time. After consecutive failures, the agent doubles the wait each time, up to a minute, minus a random jitter.
Source: RFC 9110; exponential back-off with jitter.
Invariant: the token is sent only to the configured server, over verified TLS if its address is https.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec

from hetsched.contracts.documents import encode
from hetsched.contracts.messages.agent_message import AgentAnswer, AgentMessage

ADDRESS = "/api/v1/agent/reports/"
CALL_SECONDS = 15.0
MOST_ANSWER_BYTES = 16 << 20
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


class UplinkFailure(Exception):
    """A message could not be sent; `status` is 0 without a response, `retry_after_seconds` is the Retry-After value."""

    def __init__(self, status: int, code: str, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.code = code
        self.retry_after_seconds = retry_after_seconds


class _Problem(msgspec.Struct):
    code: str = ""
    detail: str = ""


_answer = msgspec.json.Decoder(AgentAnswer).decode
_problem = msgspec.json.Decoder(_Problem).decode


class Uplink:
    """Client of one control plane, used by a single thread."""

    def __init__(
        self,
        server: str,
        bearer: Callable[[], str],
        *,
        ca_file: Path | None = None,
        cluster: str = "",
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        parts = urlsplit(server)
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/") + ADDRESS + (f"?cluster={quote(cluster)}" if cluster else "")
        self._bearer = bearer
        self._seconds = call_seconds
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._kept: HTTPConnection | None = None

    def send(self, message: AgentMessage) -> AgentAnswer:
        """Send a message and return the response. Raises: UplinkFailure."""
        try:
            token = self._bearer()
        except (OSError, ValueError) as error:
            raise UplinkFailure(0, "TokenUnreadable", str(error)) from None
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": "hetsched-agent",
        }
        body = encode(message)
        was_kept = self._kept is not None
        try:
            status, after, data = self._call(body, headers)
        except (OSError, HTTPException) as error:
            if not was_kept:
                raise UplinkFailure(0, "ServerUnreachable", _error_text(error)) from None
            try:
                status, after, data = self._call(body, headers)
            except (OSError, HTTPException) as again:
                raise UplinkFailure(0, "ServerUnreachable", _error_text(again)) from None
        if status != 200:
            raise _rejection(status, after, data)
        try:
            return _answer(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise UplinkFailure(status, "AnswerMalformed", str(error)[:200]) from None

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _call(self, body: bytes, headers: dict[str, str]) -> tuple[int, str, bytes]:
        connection, self._kept = self._kept or self._connection(), None
        try:
            connection.request("POST", self._path, body, headers)
            answer: HTTPResponse = connection.getresponse()
            data = answer.read(MOST_ANSWER_BYTES + 1)
            if len(data) > MOST_ANSWER_BYTES:
                raise HTTPException(f"the response is larger than {MOST_ANSWER_BYTES} bytes")
            if not answer.will_close:
                self._kept, connection = connection, None  # type: ignore[assignment]
            return answer.status, answer.headers.get("Retry-After", ""), data
        finally:
            if connection is not None:
                connection.close()

    def _connection(self) -> HTTPConnection:
        if self._tls is None:
            return HTTPConnection(self._host, self._port, timeout=self._seconds)
        return HTTPSConnection(self._host, self._port, timeout=self._seconds, context=self._tls)


class Pause:
    """Back-off between retries."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._failures = 0

    def after(self, failure: UplinkFailure) -> float:
        """Return the seconds to wait after another failure."""
        longest = min(FIRST_PAUSE_SECONDS * 2**self._failures, LONGEST_PAUSE_SECONDS)
        self._failures = min(self._failures + 1, 16)
        return max(longest * (0.5 + self._chance() / 2), min(failure.retry_after_seconds, LONGEST_PAUSE_SECONDS))

    def reset(self) -> None:
        self._failures = 0


def _rejection(status: int, after: str, data: bytes) -> UplinkFailure:
    try:
        problem = _problem(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        problem = _Problem()
    code = problem.code or ("Redirected" if 300 <= status < 400 else f"Status{status}")
    wait = float(after) if after.isascii() and after.isdigit() and len(after) < 6 else 0.0
    return UplinkFailure(status, code[:60], problem.detail[:300] or f"the server responded with status {status}", wait)


def _error_text(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:300]
