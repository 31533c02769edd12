"""WebSocket handshakes that reach the consumers, by origin."""

from typing import Any

import pytest

from hetsched.project.asgi_middleware import handshake_allowed

BEARER = ["hetsched", "bearer.hs_00"]


def handshake(*, protocols: list[str] = [], scheme: str = "ws", **headers: str) -> dict[str, Any]:  # noqa: B006
    named = {"host": "localhost:8000", **headers}
    raw = [(name.encode(), value.encode()) for name, value in named.items()]
    return {"type": "websocket", "scheme": scheme, "subprotocols": protocols, "headers": raw}


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "http://localhost", "http://localhost:8001", "http://sub.localhost:8000", "null", "",
     "https://localhost:8000", "file://"],
)  # fmt: skip
@pytest.mark.parametrize("protocols", [[], BEARER])
def test_foreign_pages_are_refused(origin: str, protocols: list[str]) -> None:
    assert not handshake_allowed(handshake(origin=origin, cookie="hetsched=1", protocols=protocols))


def test_own_page() -> None:
    assert handshake_allowed(handshake(origin="http://localhost:8000", cookie="hetsched=1"))


def test_own_page_over_tls() -> None:
    assert handshake_allowed(handshake(origin="https://localhost:8000", scheme="wss"))


def test_trusted_origin(settings: Any) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://console.example"]
    assert handshake_allowed(handshake(origin="https://console.example"))


def test_program_passes_so_that_the_socket_can_close_with_4401() -> None:
    assert handshake_allowed(handshake(protocols=BEARER))
    assert handshake_allowed(handshake())


def test_program_may_not_lean_on_a_cookie() -> None:
    assert not handshake_allowed(handshake(protocols=BEARER, cookie="hetsched=1"))


def test_unknown_host() -> None:
    assert not handshake_allowed(handshake(host="evil.example", origin="http://evil.example"))
