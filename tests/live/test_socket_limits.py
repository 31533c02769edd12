"""Limits per socket, user and address: sizes, rates, topics, connections and queues."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from channels.layers import InMemoryChannelLayer

from tests.builders import a_node
from tests.situations import a_cluster
from web.live import sockets
from web.live.hub import QUEUE_EVENTS, Listener

from .conftest import Viewer, in_thread

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def viewer(viewers: Any, token: Any) -> Viewer:
    made: Viewer = viewers(token=await in_thread(token)("viewer"))
    assert await made.connect()
    return made


async def test_message_over_64_kib_closes_the_socket(viewer: Viewer) -> None:
    await viewer.say("x" * (64 * 1024 + 1))
    assert await viewer.closed() == 1009


async def test_64_kib_count_in_bytes(viewer: Viewer) -> None:
    await viewer.say("é" * (32 * 1024 + 1))
    assert await viewer.closed() == 1009


async def test_binary_message_closes_the_socket(viewer: Viewer) -> None:
    await viewer.socket.send_input({"type": "websocket.receive", "bytes": b"x"})
    assert await viewer.closed() == 1003


async def test_message_flood_closes_the_socket(viewer: Viewer) -> None:
    for _ in range(sockets.BURST + 2):
        await viewer.send("unsubscribe")
    assert await viewer.closed() == 4429


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "[]", "{}", "null", '{"action":"subscribe"}', '{"action":"drop","topics":[]}',
        '{"action":"subscribe","topics":"decisions"}', '{"action":"subscribe","topics":[1]}',
        '{"action":"subscribe","topics":[],"more":1}', '{"action":"subscribe","topics":[' + "[" * 20_000,
        '{"action":"subscribe","topics":["\\ud800"]}',
    ],
)  # fmt: skip
async def test_invalid_message_gets_an_error_and_the_socket_stays_open(viewer: Viewer, text: str) -> None:
    await viewer.say(text)
    answer = await viewer.receive()
    assert (answer["type"], answer["revision"]) == ("error", 0)
    await viewer.listen("policies")


@pytest.mark.parametrize(
    "topic", ["", "x", "cluster:", "cluster:none", "node:none", "workload:w-0", "node:\0", "a" * 5000]
)
async def test_unknown_topic_gets_an_error_with_its_name(viewer: Viewer, topic: str) -> None:
    await viewer.send("subscribe", topic)
    answer = await viewer.receive()
    assert (answer["topic"], answer["type"], answer["data"]["code"]) == (topic, "error", "TopicUnknown")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "MessageInvalid"),
        ('{"action": "subscribe", "topics": ["node:unknown"]}', "TopicUnknown"),
        ('{"action": "unsubscribe", "topics": ["cluster:unknown"]}', "TopicNotSubscribed"),
    ],
)
async def test_errors_state_what_to_do(viewer: Viewer, text: str, code: str) -> None:
    await viewer.say(text)
    data = (await viewer.receive())["data"]
    assert data["code"] == code
    assert data["detail"]
    assert data["hint"]


@pytest.mark.parametrize(("role", "namespaces"), [("viewer", ("team",)), ("agent", ())])
async def test_denied_topics_reveal_no_clusters(
    viewers: Any, token: Any, role: str, namespaces: tuple[str, ...]
) -> None:
    def nodes_of_one_name() -> None:
        for name in ("first", "second", "third"):
            a_cluster(a_node("n1"), name=name)

    await in_thread(nodes_of_one_name)()
    limited = viewers(token=await in_thread(token)("viewer", "team"))
    assert await limited.connect()
    for topic in ("node:n1", "node:none"):
        await limited.send("subscribe", topic)
        answer = await limited.receive()
        assert answer["data"]["code"] == "PermissionDenied"
        assert "second" not in str(answer)


async def test_topics_per_socket_are_limited(viewer: Viewer) -> None:
    await viewer.send("subscribe", *(f"cluster:c{i}" for i in range(sockets.MAX_TOPICS + 1)))
    assert (await viewer.receive())["data"]["code"] == "TooManyTopics"


async def test_sockets_per_user_are_limited(viewers: Any, token: Any, settings: Any) -> None:
    settings.HETSCHED_SOCKETS_PER_USER = 2
    plaintext = await in_thread(token)("viewer")
    first, second, third, fourth = (viewers(token=plaintext) for _ in range(4))
    for viewer in (first, second, third):
        assert await viewer.connect()
    assert await third.closed() == 4429
    await first.leave()
    assert await fourth.connect()
    await fourth.listen("policies")


async def test_sockets_per_address_are_limited(viewers: Any, token: Any, settings: Any) -> None:
    settings.HETSCHED_SOCKETS_PER_ADDRESS = 2
    item, other = [await in_thread(token)("viewer") for _ in range(2)]
    near = "2001:db8::1", "2001:db8::2"  # one customer's /64
    first, second, third = (
        viewers(token=item, address=near[0]),
        viewers(token=other, address=near[1]),
        viewers(token=other, address=near[0]),
    )
    for viewer in (first, second, third):
        assert await viewer.connect()
    assert await third.closed() == 4429
    elsewhere = viewers(token=other, address="2001:db8:0:1::1")
    assert await elsewhere.connect()
    await elsewhere.listen("policies")
    await first.leave()
    again = viewers(token=item, address=near[1])
    assert await again.connect()
    await again.listen("policies")


async def test_anonymous_sockets_leave_no_counter(viewers: Any, settings: Any) -> None:
    settings.HETSCHED_SOCKETS_PER_ADDRESS = 1
    for _ in range(3):
        stranger = viewers()
        assert await stranger.connect()
        assert await stranger.closed() == 4401


async def test_all_sockets_of_a_process_share_one_subscription(
    viewers: Any, token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    new_channel = InMemoryChannelLayer.new_channel

    async def counted(self: Any, prefix: str = "specific.") -> str:
        asked.append(prefix)
        return str(await new_channel(self, prefix))

    monkeypatch.setattr(InMemoryChannelLayer, "new_channel", counted)
    plaintext = await in_thread(token)("viewer")
    for _ in range(5):
        viewer = viewers(token=plaintext)
        assert await viewer.connect()
        await viewer.listen("policies")
    assert len(asked) == 1


def test_slow_reader_has_a_bounded_queue_and_gets_a_snapshot() -> None:
    listener = Listener()
    for topic in ("busy", "calm"):
        listener.revisions[topic] = 0
    listener.offer("calm", 1, "c1")
    for revision in range(1, 1000):
        listener.offer("busy", revision, f"b{revision}")
        assert len(listener.queue) <= QUEUE_EVENTS
    # The oldest event was dropped first; the first event in the queue was that of the calm topic.
    assert set(listener.stale) == {"busy", "calm"}
    assert msgspec.json.encode(list(listener.queue)) == b"[]"
