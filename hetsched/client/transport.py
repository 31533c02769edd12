"""HTTP requests to a server's REST API, and the errors of their responses.

A request returns one response or raises one error. An unreachable server, a rejected token and a server error raise
`ServerUnavailable`; a rejected request raises `Refused`, with the server's problem document. After a connection
failure, the client retries read requests, and also submissions because they have an idempotency key. If a response has
a Retry-After header, the client retries at that time, for up to `patience_seconds` in total, because the server has not
executed a request that it deferred.
Redirects are not followed, so that the token is sent only to the configured server.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from hetsched import __version__
from hetsched.contracts.errors import InputError

from .errors import Refused, ServerUnavailable

if TYPE_CHECKING:
    import httpx

API = "/api/v1/"
KEY = "Idempotency-Key"
KEY_RULE = "the value must be 1 to 255 printable ASCII characters without spaces"
PATIENCE_SECONDS = 30.0
_KEY = re.compile(r"[!-~]{1,255}", re.ASCII)
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.5
_TIMEOUT_SECONDS = 60.0
_SPREAD = 0.2  # random part of a pause, so that many clients do not retry at the same time
_AUTHENTICATE = "Set HETSCHED_TOKEN, or pass --token, with an unexpired token from `hetsched token create`"

Query = Mapping[str, str | int]


class Transport:
    """One server and one token, over persistent connections; `on_pause` receives each pause before a retry."""

    def __init__(
        self,
        server: str,
        token: str = "",
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        attempts: int = _ATTEMPTS,
        on_pause: Callable[[float], None] | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        import httpx

        self.server = checked_address(server)
        self.patience_seconds = patience_seconds
        self.attempts = attempts
        self.on_pause = on_pause
        headers = {"Accept": "application/json", "User-Agent": f"hetsched/{__version__}"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            self._http = httpx.Client(
                base_url=self.server, headers=headers, timeout=timeout_seconds, transport=transport
            )
        except ValueError:
            message = "a token can contain only ASCII letters, digits and _"
            raise InputError("TokenInvalid", message, place="--token", hint=_AUTHENTICATE) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def get(self, path: str, **query: str | int) -> Any:
        """Return the document at `path` (relative to the API root)."""
        return self.send("GET", path, query=query).json()

    def items(self, path: str, *, most: int, **query: str | int) -> Iterator[Any]:
        """Yield at most `most` rows of a list, loading page after page."""
        page = self.get(path, limit=min(most, 1000), **query)
        while True:
            for item in page["items"]:
                yield item
                most -= 1
                if most == 0:
                    return
            if page["next"] is None:
                return
            page = self._request("GET", page["next"], {}, None, {}, repeat=True).json()

    def changed(self, path: str, seen: str = "", **query: str | int) -> tuple[str, Any | None]:
        """Return the ETag and the document at `path`, or None instead of the document if its ETag is still `seen`."""
        headers = {"If-None-Match": seen} if seen else {}
        response = self.send("GET", path, query=query, headers=headers)
        tag = response.headers.get("ETag", "")
        return (tag, None) if response.status_code == 304 else (tag, response.json())

    def probe(self, path: str) -> tuple[int, Any]:
        """Return the status and the document of a URL outside the API; an error status does not raise.

        Raises: ServerUnavailable, even if another product responds.
        """
        response = self._send("GET", path, {}, None, {}, repeat=True)
        try:
            return response.status_code, response.json()
        except ValueError:
            raise ServerUnavailable(
                f"Http{response.status_code}",
                f"the response for {path} is not a JSON document of hetsched",
                place=self.server,
            ) from None

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeat: bool = False,
    ) -> httpx.Response:
        """Send one request; `repeat` means that it is idempotent.

        Raises: Refused with the server's problem document; ServerUnavailable; InputError for an invalid key.
        """
        given = dict(headers or {})
        if not _KEY.fullmatch(given.get(KEY, "-")):
            raise InputError("IdempotencyKeyInvalid", KEY_RULE, place=KEY, hint="Send a new UUID as the key")
        repeat = repeat or method == "GET"
        return self._request(method, f"{API}{path}", dict(query or {}), body, given, repeat=repeat)

    def _request(
        self, method: str, url: str, query: dict[str, str | int], body: bytes | None, headers: dict[str, str], *,
        repeat: bool,
    ) -> httpx.Response:  # fmt: skip
        remaining = self.patience_seconds
        while True:
            response = self._send(method, url, query, body, headers, repeat=repeat)
            pause = _retry_after(response, repeat)
            if pause is None or pause > remaining:
                return self._answer(response)
            remaining -= pause
            if self.on_pause is not None:
                self.on_pause(pause)
            time.sleep(pause)

    def _send(
        self, method: str, url: str, query: dict[str, str | int], body: bytes | None, headers: dict[str, str], *,
        repeat: bool,
    ) -> httpx.Response:  # fmt: skip
        import httpx

        attempts = self.attempts if repeat else 1
        for attempt in range(1, attempts + 1):
            try:
                return self._http.request(method, url, params=query or None, content=body, headers=headers)
            except httpx.TransportError as error:
                if attempt == attempts:
                    reason = str(error) or type(error).__name__
                    hint = "Is the server running? Set its address with --server or HETSCHED_SERVER"
                    raise ServerUnavailable(
                        "ServerUnreachable", reason, place=self.server, hint=hint, passing=True
                    ) from None
            time.sleep(_spread(_PAUSE_SECONDS * attempt))
        raise AssertionError("unreachable")

    def _answer(self, response: httpx.Response) -> httpx.Response:
        if response.is_success or response.status_code == 304:
            return response
        refused = Refused(response.status_code, _problem(response), response.reason_phrase)
        hint: str = refused.hint
        passing = response.status_code == 429 or response.is_server_error
        if response.status_code == 401:  # the server's hint is for HTTP clients, which send the header themselves
            hint = _AUTHENTICATE
        elif response.status_code == 403:
            hint = hint or "Pass a token with the required role in --token or HETSCHED_TOKEN"
        elif response.status_code == 429:
            after = response.headers.get("Retry-After", "")
            hint = hint or (f"Retry after {after} s" if after else "Retry later")
        elif response.is_server_error or response.is_redirect:
            request_id = refused.problem.get("requestId", "")
            hint = hint or (f"See request {request_id} in the server log" if request_id else "")
        else:
            raise refused
        raise ServerUnavailable(refused.code, refused.message, place=self.server, hint=hint, passing=passing)


def checked_address(server: str) -> str:
    """Validate the URL of a server and return it without a trailing slash.

    Raises: InputError `ServerUrlInvalid`.
    """
    try:
        parts = urlsplit(server)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or parts.username:
        raise InputError(
            "ServerUrlInvalid", f"{server[:200]!r} is not a valid server URL", place="--server",
            hint="Write http://HOST:PORT or https://HOST",
        )  # fmt: skip
    return server.rstrip("/")


def _retry_after(response: httpx.Response, repeat: bool) -> float | None:
    """Return the Retry-After of a response in seconds, or None if it has none or does not permit a retry.

    Any request may be retried after 429, and a request with `repeat` also after 503.
    """
    if not (response.status_code == 429 or (response.status_code == 503 and repeat)):
        return None
    after = response.headers.get("Retry-After", "")
    return _spread(max(int(after), 0.1)) if after.isdecimal() else None


def _spread(seconds: float) -> float:
    return seconds * (1 + _SPREAD * secrets.randbelow(1000) / 1000)


def _problem(response: httpx.Response) -> dict[str, Any]:
    """Return the fields of a problem document; they are empty for other content."""
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
