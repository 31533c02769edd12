"""Fixtures for tests of live sockets.

The channel layer is in memory. The tests check the messages that a client of the product's ASGI application receives.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from asgiref.testing import ApplicationCommunicator
from channels.db import database_sync_to_async
from django.contrib.auth.models import Group, User
from django.test import Client

from hetsched.access.tokens import create_token
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import SYSTEM
from hetsched.journal.publish import merge
from hetsched.placement import dispatch, scheduler_cache, topic_subscriptions
from hetsched.placement.actions import import_cluster
from hetsched.project.asgi import application
from hetsched.storage.write_lock import write_transaction
from tests.builders import a_node
from tests.builtins import builtin_policies
from web.live import sockets
from web.live.hub import stop_hub

HOST = b"testserver"
# Maximum wait for a response on a busy machine; responses normally arrive immediately.
PATIENCE_SECONDS = 60.0


class Viewer:
    """A client that keeps the documents of its topics up to date."""

    def __init__(
        self,
        *,
        token: str = "",
        cookie: str = "",
        origin: str | None = None,
        protocols: tuple[str, ...] = (),
        address: str = "127.0.0.1",
    ) -> None:
        headers = [(b"host", HOST)]
        if origin is not None:
            headers.append((b"origin", origin.encode()))
        if cookie:
            headers.append((b"cookie", cookie.encode()))
        scope = {
            "type": "websocket",
            "path": "/ws/live/",
            "query_string": b"",
            "headers": headers,
            "client": (address, 40_000),
            "subprotocols": [*protocols, *([f"bearer.{token}"] if token else [])],
        }
        self.awake = asyncio.Event()
        self.awake.set()
        self.socket = ApplicationCommunicator(self._slow, scope)
        self.protocol: str | None = None
        self.documents: dict[str, Any] = {}
        self.revisions: dict[str, int] = {}
        self.messages: list[dict[str, Any]] = []

    async def _slow(self, scope: Any, receive: Any, send: Any) -> None:
        """Stop reading from the server, like a client with a full receive buffer."""

        async def when_awake(message: Any) -> None:
            await self.awake.wait()
            await send(message)

        await application(scope, receive, when_awake)

    async def connect(self) -> bool:
        """Open the socket; return False if the server rejects it."""
        await self.socket.send_input({"type": "websocket.connect"})
        output = await self.socket.receive_output(PATIENCE_SECONDS)
        self.protocol = output.get("subprotocol")
        return bool(output["type"] == "websocket.accept")

    async def say(self, text: str) -> None:
        await self.socket.send_input({"type": "websocket.receive", "text": text})

    async def send(self, action: str, *topics: str) -> None:
        await self.say(msgspec.json.encode({"action": action, "topics": topics}).decode())

    async def receive(self, timeout: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """Receive one message and apply it, as a client does."""
        output = await self.socket.receive_output(timeout)
        assert output["type"] == "websocket.send", output
        message: dict[str, Any] = msgspec.json.decode(output["text"])
        self.messages.append(message)
        topic, revision = message["topic"], message["revision"]
        if message["type"] == "snapshot":
            self.documents[topic], self.revisions[topic] = message["data"], revision
        elif message["type"] == "delta" and revision > self.revisions[topic]:
            assert revision == self.revisions[topic] + 1, f"a gap: {self.revisions[topic]} -> {revision}"
            self.documents[topic] = merge(self.documents[topic], message["data"])
            self.revisions[topic] = revision
        return message

    async def listen(self, *topics: str) -> None:
        """Subscribe and receive the snapshots."""
        await self.send("subscribe", *topics)
        for _ in topics:
            message = await self.receive()
            assert message["type"] == "snapshot", message

    async def receive_until(self, topic: str, revision: int) -> None:
        while self.revisions.get(topic, -1) < revision:
            await self.receive()

    async def closed(self, timeout: float = PATIENCE_SECONDS) -> int:
        """Return the code with which the server closed the socket."""
        while True:
            output = await self.socket.receive_output(timeout)
            if output["type"] == "websocket.close":
                return int(output.get("code", 1000))

    async def leave(self) -> None:
        await self.socket.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.socket.wait(PATIENCE_SECONDS)


def in_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run database code of a test in the thread that the sockets use."""
    return database_sync_to_async(function)


@pytest.fixture(autouse=True)
def local_messages(settings: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Keep live messages in this process, and do not wake workers."""
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.ALLOWED_HOSTS = ["testserver"]
    # The next test reuses the IDs and revisions of a flushed test.
    monkeypatch.setattr(scheduler_cache, "_caches", {})
    monkeypatch.setattr(sockets, "_open", Counter())
    woken: list[int] = []
    monkeypatch.setattr(dispatch, "wake", lambda cluster_id, task="": woken.append(cluster_id))
    return woken


@pytest.fixture
async def viewers() -> AsyncIterator[Callable[..., Viewer]]:
    """Return a factory of clients; at the end, they are disconnected and the hub is stopped."""
    made: list[Viewer] = []

    def make(**arguments: Any) -> Viewer:
        made.append(Viewer(**arguments))
        return made[-1]

    yield make
    for viewer in made:
        await asyncio.gather(viewer.leave(), return_exceptions=True)
    await stop_hub()


@pytest.fixture
def cluster(transactional_db: Any) -> Cluster:
    builtin_policies()
    nodes = tuple(a_node(f"n{i}").build() for i in range(4))
    return import_cluster(ClusterContent(nodes=nodes), name="lab", actor=SYSTEM)


@pytest.fixture
def token(transactional_db: Any) -> Callable[..., str]:
    """Return a factory of tokens; its arguments are the role, then the namespaces that limit the token."""

    def make(role: str = "viewer", *namespaces: str) -> str:
        bound = {"cluster": "lab", "node": "n1"} if role == "agent" else {}
        return create_token(role=role, name=f"test-{role}", namespaces=namespaces, **bound)[1]

    return make


@pytest.fixture
def cookie(transactional_db: Any) -> Callable[..., str]:
    """Return a factory of session cookies of users with the given groups."""

    def make(name: str = "ada", *groups: str) -> str:
        user = User.objects.create_user(name, password="a long enough password")
        user.groups.set([Group.objects.get_or_create(name=group)[0] for group in groups])
        client = Client()
        client.force_login(user)
        return "; ".join(f"{morsel.key}={morsel.value}" for morsel in client.cookies.values())

    return make


def hold_topic_openings(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Let each opening of a topic set the first event and wait for the second, as behind a long transaction."""
    begun, ended = threading.Event(), threading.Event()

    @contextmanager
    def write_after_others() -> Iterator[None]:
        begun.set()
        assert ended.wait(PATIENCE_SECONDS)
        with write_transaction():
            yield

    monkeypatch.setattr(topic_subscriptions, "write_transaction", write_after_others)
    return begun, ended
