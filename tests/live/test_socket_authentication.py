"""Authentication of sockets: sessions from our own pages, tokens from programs, and the close codes of rejections."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator

from hetsched.project.asgi import application

from .conftest import in_thread

pytestmark = pytest.mark.django_db(transaction=True)
OURS = "http://testserver"


async def test_session_on_our_own_page_is_accepted(viewers: Any, cookie: Any, cluster: Any) -> None:
    viewer = viewers(cookie=await in_thread(cookie)("ada", "viewer"), origin=OURS)
    assert await viewer.connect()
    await viewer.listen("cluster:lab")
    assert viewer.documents["cluster:lab"]["name"] == "lab"


async def test_token_is_accepted_and_the_offered_protocol_selected(viewers: Any, token: Any) -> None:
    plaintext = await in_thread(token)("viewer")
    viewer = viewers(token=plaintext)
    assert await viewer.connect()
    assert viewer.protocol == f"bearer.{plaintext}"


async def test_product_subprotocol_precedes_the_token(viewers: Any, token: Any) -> None:
    viewer = viewers(token=await in_thread(token)("viewer"), protocols=("hetsched.live.v1",))
    assert await viewer.connect()
    assert viewer.protocol == "hetsched.live.v1"


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "http://sub.testserver", "http://testserver:8000", "https://testserver", "null", "", None],
)
async def test_foreign_origin_is_rejected_despite_a_valid_cookie(viewers: Any, cookie: Any, origin: str | None) -> None:
    viewer = viewers(cookie=await in_thread(cookie)("ada", "viewer"), origin=origin)
    assert not await viewer.connect()


async def test_foreign_origin_is_rejected_despite_a_valid_token(viewers: Any, token: Any) -> None:
    viewer = viewers(token=await in_thread(token)("viewer"), origin="http://evil.example")
    assert not await viewer.connect()


async def test_anonymous_socket_is_closed_with_4401(viewers: Any) -> None:
    viewer = viewers(origin=OURS)
    assert await viewer.connect()
    assert await viewer.closed() == 4401


@pytest.mark.parametrize("plaintext", ["x", "hs_" + "0" * 64])
async def test_invalid_token_is_closed_with_4401(viewers: Any, plaintext: str) -> None:
    viewer = viewers(token=plaintext)
    assert await viewer.connect()
    assert await viewer.closed() == 4401


async def test_invalid_token_does_not_fall_back_to_the_cookie(viewers: Any, cookie: Any) -> None:
    viewer = viewers(token="hs_" + "0" * 64, cookie=await in_thread(cookie)("ada", "viewer"), origin=OURS)
    assert await viewer.connect()
    assert await viewer.closed() == 4401


async def test_forbidden_topic_is_closed_with_4403(viewers: Any, token: Any, cookie: Any) -> None:
    agent = viewers(token=await in_thread(token)("agent"))
    stranger = viewers(cookie=await in_thread(cookie)("bob"), origin=OURS)
    for viewer in (agent, stranger):
        assert await viewer.connect()
        assert await viewer.closed() == 4403


async def test_unknown_socket_path_is_closed_with_4404() -> None:
    for path in ("/ws/anything", "/ws/live/x", "/", "/nodes/"):
        scope = {"type": "websocket", "path": path, "headers": [(b"host", b"testserver")], "subprotocols": []}
        socket = ApplicationCommunicator(application, scope)
        await socket.send_input({"type": "websocket.connect"})
        assert (await socket.receive_output())["type"] == "websocket.accept"
        assert await socket.receive_output() == {"type": "websocket.close", "code": 4404}
