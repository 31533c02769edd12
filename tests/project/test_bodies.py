"""Size and rate limits of request bodies, with a simulated clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hetsched.project import bodies
from hetsched.project.bodies import MOST_UNVERIFIED, BodyRefused, RequestBody

SCOPE = {"headers": [], "client": ("192.0.2.1", 1)}


@pytest.fixture(autouse=True)
def small(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(bodies, "GRACE_SECONDS", 0.2)
    settings.HETSCHED_BODY_BYTES_PER_SECOND = 1000
    settings.HETSCHED_BODY_SECONDS = 60
    settings.HETSCHED_BODIES_BYTES = settings.HETSCHED_BODIES_BYTES_PER_ADDRESS = 1 << 20
    yield
    assert bodies.body_memory.held.total() == 0, "every body releases its space"


def sending(*pieces: bytes, pause: float = 0.0) -> Any:
    remaining = list(pieces)

    async def receive() -> Any:
        await asyncio.sleep(pause)
        piece = remaining.pop(0) if remaining else b""
        return {"type": "http.request", "body": piece, "more_body": bool(remaining)}

    return receive


async def test_small_body_is_read_whole() -> None:
    body = RequestBody(SCOPE, sending(b"ab", b"c"))
    await body.read_first()
    assert (body.complete, body.file.read()) == (True, b"abc")
    body.close()


async def test_slow_body_is_aborted() -> None:
    # 1 byte in 0.1 s is below the rate of 1000 bytes a second.
    body = RequestBody(SCOPE, sending(*[b"x"] * 100, pause=0.1))
    began = asyncio.get_running_loop().time()
    with pytest.raises(BodyRefused) as refused:
        await body.read_first()
    assert refused.value.status == 408
    assert asyncio.get_running_loop().time() - began < 5
    body.close()


async def test_body_at_the_minimum_rate_is_read() -> None:
    body = RequestBody(SCOPE, sending(*[b"x" * 1000] * 10, pause=0.1))
    await body.read_first()
    assert body.complete
    body.close()


async def test_reading_without_a_credential_stops_at_64_kib() -> None:
    pieces = [b"x" * 1024] * 100
    body = RequestBody(SCOPE, sending(*pieces))
    await body.read_first()
    assert not body.complete
    assert len(body.file.read()) == MOST_UNVERIFIED
    await body.read_rest()
    assert body.file.read() == b"".join(pieces)
    body.close()


async def test_body_with_a_large_length_is_not_read() -> None:
    async def never() -> Any:
        raise AssertionError

    body = RequestBody({**SCOPE, "headers": [(b"content-length", b"65537")]}, never)
    await body.read_first()
    assert not body.complete
    body.close()


@pytest.mark.parametrize("setting", ["HETSCHED_BODIES_BYTES", "HETSCHED_BODIES_BYTES_PER_ADDRESS"])
async def test_bodies_share_bounded_memory(settings: Any, setting: str) -> None:
    setattr(settings, setting, 500_000)
    first, second = (RequestBody(SCOPE, sending(b"x" * 300_000, b"x" * 100_000)) for _ in range(2))
    await first.read_rest()
    with pytest.raises(BodyRefused) as refused:
        await second.read_rest()
    assert (refused.value.status, refused.value.retry) == (429, True)
    second.close()
    first.close()
    third = RequestBody(SCOPE, sending(b"x" * 300_000, b"x" * 100_000))
    await third.read_rest()
    assert third.complete
    third.close()


async def test_memory_is_limited_per_address(settings: Any) -> None:
    settings.HETSCHED_BODIES_BYTES_PER_ADDRESS = 400_000
    found = [RequestBody({**SCOPE, "client": (f"192.0.2.{n}", 1)}, sending(b"x" * 400_000)) for n in (1, 2)]
    for body in found:
        await body.read_rest()
    for body in found:
        body.close()
