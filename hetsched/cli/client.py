"""Talking to a server over REST.

Rule: one request, one answer or one reason. An unreachable server, a refused token and a server's own failure are
`ServerUnavailable` (exit 3); a refused request is the `InputError` that the server's problem document describes
(exit 2). Requests that change nothing are tried again when the connection fails; a submission too, because it carries
an idempotency key. Redirects are not followed: a token goes to the server that was named and to no other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from hetsched import __version__
from hetsched.contracts.errors import InputError

if TYPE_CHECKING:
    import httpx

EXIT_UNREACHABLE = 3
DEFAULT_SERVER = "http://127.0.0.1:8000"
API = "/api/v1/"
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.5
_TIMEOUT_SECONDS = 60.0

ServerOption = Annotated[
    str, typer.Option("--server", envvar="HETSCHED_SERVER", metavar="URL", help="Address of the server.")
]
TokenOption = Annotated[
    str,
    typer.Option(
        "--token", envvar="HETSCHED_TOKEN", metavar="TOKEN", help="API token; safer in the environment.",
        show_default=False,
    ),
]  # fmt: skip


class ServerUnavailable(Exception):
    """The server gave no usable answer; `told` says why."""

    def __init__(self, code: str, message: str, *, place: str, hint: str = "") -> None:
        super().__init__(message)
        self.told = InputError(code, message, place=place, hint=hint)


class Client:
    """One server and one token, for the time of one command."""

    def __init__(self, server: str, token: str = "", *, transport: httpx.BaseTransport | None = None) -> None:
        import httpx

        self.server = _checked(server)
        headers = {"Accept": "application/json", "User-Agent": f"hetsched/{__version__}"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            self._http = httpx.Client(
                base_url=self.server, headers=headers, timeout=_TIMEOUT_SECONDS, transport=transport
            )
        except ValueError:
            raise InputError("TokenInvalid", "a token has ASCII letters, digits and _ only", place="--token") from None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, **query: str | int) -> Any:
        """Return the document at `path` (under the API's root)."""
        return self.send("GET", path, query=query).json()

    def items(self, path: str, *, most: int, **query: str | int) -> Iterator[Any]:
        """Yield the rows of a list, page after page, at most `most`."""
        page = self.get(path, limit=min(most, 1000), **query)
        while True:
            for item in page["items"]:
                yield item
                most -= 1
                if most == 0:
                    return
            if page["next"] is None:
                return
            page = self._answer(self._send("GET", page["next"], {}, None, {}, repeat=True)).json()

    def probe(self, path: str) -> tuple[int, Any]:
        """Return status and document of an address outside the API, whatever the status.

        Raises: ServerUnavailable, also where something answers that is not this product.
        """
        response = self._send("GET", path, {}, None, {}, repeat=True)
        try:
            return response.status_code, response.json()
        except ValueError:
            raise ServerUnavailable(
                f"Http{response.status_code}", f"{path} is no page of hetsched", place=self.server
            ) from None

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeat: bool = False,
    ) -> httpx.Response:
        """Send one request; `repeat` says that doing it twice is the same as doing it once.

        Raises: InputError as the server's problem document says; ServerUnavailable.
        """
        given = dict(headers or {})
        repeat = repeat or method == "GET"
        return self._answer(self._send(method, f"{API}{path}", dict(query or {}), body, given, repeat=repeat))

    def _send(
        self, method: str, url: str, query: dict[str, str | int], body: bytes | None, headers: dict[str, str], *,
        repeat: bool,
    ) -> httpx.Response:  # fmt: skip
        import httpx

        attempts = _ATTEMPTS if repeat else 1
        for attempt in range(1, attempts + 1):
            try:
                return self._http.request(method, url, params=query or None, content=body, headers=headers)
            except httpx.TransportError as error:
                if attempt == attempts:
                    reason = str(error) or type(error).__name__
                    hint = "Is it running? Name another with --server or HETSCHED_SERVER"
                    raise ServerUnavailable("ServerUnreachable", reason, place=self.server, hint=hint) from None
            time.sleep(_PAUSE_SECONDS * attempt)
        raise AssertionError("unreachable")

    def _answer(self, response: httpx.Response) -> httpx.Response:
        if response.is_success:
            return response
        problem = _problem(response)
        code, detail = problem.get("code", f"Http{response.status_code}"), problem.get("detail", response.reason_phrase)
        hint = problem.get("hint", "")
        if response.status_code in (401, 403):
            hint = hint or "Give a token of the right role with --token or HETSCHED_TOKEN"
            raise ServerUnavailable(code, detail, place=self.server, hint=hint)
        if response.is_server_error or response.is_redirect:
            request_id = problem.get("requestId", "")
            hint = hint or (f"The server's log has more under request {request_id}" if request_id else "")
            raise ServerUnavailable(code, detail, place=self.server, hint=hint)
        raise InputError(code, detail, place=problem.get("place", ""), hint=hint)


def _problem(response: httpx.Response) -> dict[str, str]:
    """Return the text fields of a problem document, none where the answer is something else."""
    try:
        found = response.json()
    except ValueError:
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}


def _checked(server: str) -> str:
    try:
        parts = urlsplit(server)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or parts.username:
        raise InputError(
            "ServerUrlInvalid", f"{server[:200]!r} is no address of a server", place="--server",
            hint="Write http://HOST:PORT or https://HOST",
        )  # fmt: skip
    return server.rstrip("/")


def connect(server: str, token: str) -> Client:
    """Open a client; tests put their own in its place."""
    return Client(server, token)
