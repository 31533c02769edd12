"""The address by which a client is counted: its peer address, or the one that a trusted proxy forwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.test import RequestFactory
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from hetsched.access.addresses import address_key
from hetsched.access.limits import Limit, delete_full_buckets, take
from hetsched.access.models import Bucket


def counted(peer: str, *headers: tuple[bytes, bytes], trusted: str = "10.0.0.1") -> str:
    """Send a request through the web server's own proxy handling; return the address by which it is counted."""
    found: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(address_key(ASGIRequest(scope, None)))

    scope = {
        "type": "http", "method": "GET", "path": "/", "query_string": b"", "scheme": "http", "http_version": "1.1",
        "headers": list(headers), "client": (peer, 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    asyncio.run(ProxyHeadersMiddleware(app, trusted_hosts=trusted)(scope, None, None))  # type: ignore[arg-type]
    return found[0]


SPOOFS = [
    (b"x-forwarded-for", b"1.2.3.4"),
    (b"x_forwarded_for", b"1.2.3.4"),
    (b"X-Forwarded-For", b"1.2.3.4"),
    (b"x-real-ip", b"1.2.3.4"),
    (b"forwarded", b"for=1.2.3.4"),
    (b"remote_addr", b"1.2.3.4"),
    (b"remote-addr", b"1.2.3.4"),
    (b"client-ip", b"1.2.3.4"),
]


@pytest.mark.parametrize("header", SPOOFS, ids=lambda header: header[0].decode())
def test_only_a_trusted_proxy_sets_the_client_address(header: tuple[bytes, bytes]) -> None:
    assert counted("192.0.2.7", header) == "192.0.2.7"


def test_trusted_proxy_sets_the_client_address() -> None:
    assert counted("10.0.0.1", (b"x-forwarded-for", b"203.0.113.5")) == "203.0.113.5"


def test_forwarded_values_from_before_the_proxy_are_ignored() -> None:
    assert counted("10.0.0.1", (b"x-forwarded-for", b"1.2.3.4, 203.0.113.5")) == "203.0.113.5"


@pytest.mark.parametrize(
    ("peer", "key"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("", "unknown"),
        ("testclient", "unknown"),
    ],
)
def test_client_has_one_rate_limit_key(peer: str, key: str) -> None:
    assert address_key(RequestFactory().get("/", REMOTE_ADDR=peer)) == key


def test_buckets_that_are_full_again_are_forgotten(db: Any) -> None:
    take("busy", Limit(1, 5))
    take("idle", Limit(1, 5))
    Bucket.objects.filter(key="idle").update(full_at=1)
    assert delete_full_buckets() == 1
    assert list(Bucket.objects.values_list("key", flat=True)) == ["busy"]
