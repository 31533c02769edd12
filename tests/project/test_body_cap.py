"""A body is rejected once it exceeds the limit of its path, with or without a stated length."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.http import HttpResponse
from django.test import RequestFactory

from hetsched.project.asgi_middleware import BodyCap
from hetsched.project.body_gate import BodyGate


async def reading_app(scope: Any, receive: Any, send: Any) -> None:
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def post(path: str, chunks: list[bytes], headers: list[tuple[bytes, bytes]] | None = None) -> list[Any]:
    async def messages() -> AsyncIterator[dict[str, Any]]:
        for number, chunk in enumerate(chunks, 1):
            yield {"type": "http.request", "body": chunk, "more_body": number < len(chunks)}

    source, sent = messages(), []

    async def receive() -> Any:
        return await anext(source, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": headers or []}
    await BodyCap(reading_app)(scope, receive, send)
    return sent


@pytest.fixture(autouse=True)
def small_caps(settings: Any) -> None:
    settings.HETSCHED_BODY_BYTES, settings.HETSCHED_MANIFEST_BYTES = 10, 100


async def test_within_the_cap() -> None:
    assert (await post("/login/", [b"x" * 10]))[0]["status"] == 200


async def test_stated_length() -> None:
    # The response does not wait for the body.
    assert (await post("/login/", [], [(b"content-length", b"11")]))[0]["status"] == 413


async def test_streamed_without_a_length() -> None:
    sent = await post("/login/", [b"x" * 6, b"x" * 6])
    assert sent[0]["status"] == 413
    assert json.loads(sent[1]["body"])["code"] == "BodyTooLarge"


async def test_rejection_contains_the_request_id() -> None:
    sent = await post("/login/", [], [(b"content-length", b"11"), (b"x-request-id", b"build-0017")])
    assert (b"x-request-id", b"build-0017") in sent[0]["headers"]
    assert json.loads(sent[1]["body"])["requestId"] == "build-0017"


async def test_length_that_is_no_number() -> None:
    assert (await post("/login/", [], [(b"content-length", b"-1")]))[0]["status"] == 413


@pytest.mark.parametrize("path", ["/api/v1/workloads/", "/api/v1/clusters/a/import/", "/api/v1/what-if/"])
async def test_manifests_may_be_larger(path: str) -> None:
    assert (await post(path, [b"x" * 100]))[0]["status"] == 200
    assert (await post(path, [b"x" * 101]))[0]["status"] == 413


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("/login/", "HETSCHED_BODY_BYTES"),
        ("/api/v1/isa/inspect/", "HETSCHED_BINARY_BYTES"),
        ("/api/v1/agent/reports/", "this limit is fixed"),
    ],
)
async def test_hint_names_the_limit_of_the_path(path: str, remedy: str) -> None:
    sent = await post(path, [], [(b"content-length", b"9" * 15)])
    assert remedy in json.loads(sent[1]["body"])["hint"]


def test_page_without_a_session_asks_to_sign_in() -> None:
    request: Any = RequestFactory().post("/login/")
    request.body_awaited, request.user = True, AnonymousUser()
    found: Any = BodyGate(lambda _: HttpResponse()).process_view(request, HttpResponse, (), {})
    assert found.refused.hint == "Sign in first"
