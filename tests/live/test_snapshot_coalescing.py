"""Concurrent snapshot requests share reads of the database thread; no request gets an outdated snapshot."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from hetsched.access.changes import publish_rights_change
from web.live import database, rights, sockets
from web.live.database import QueryBatcher

from .conftest import PATIENCE_SECONDS, in_thread

pytestmark = pytest.mark.django_db(transaction=True)


class Source:
    """A data source whose read blocks its thread until released."""

    def __init__(self) -> None:
        self.value = 0
        self.asked: list[str] = []
        self.begun, self.free = threading.Event(), threading.Event()
        self.free.set()

    def read(self, key: str) -> tuple[str, int]:
        self.asked.append(key)
        answer = key, self.value
        self.begun.set()
        assert self.free.wait(PATIENCE_SECONDS)
        if key == "odd":
            raise ValueError(key)
        return answer


async def test_equal_concurrent_requests_share_one_read() -> None:
    source = Source()
    ask = QueryBatcher(source.read)
    answers = await asyncio.gather(*(ask(key) for key in "abab"))
    assert answers == [("a", 0), ("b", 0), ("a", 0), ("b", 0)]
    assert source.asked == ["a", "b"]


async def test_request_during_a_read_gets_a_later_read() -> None:
    source = Source()
    ask = QueryBatcher(source.read)
    source.free.clear()
    early = asyncio.create_task(ask("a"))
    assert await asyncio.to_thread(source.begun.wait, PATIENCE_SECONDS)
    source.value = 1
    late = asyncio.create_task(ask("a"))
    await asyncio.sleep(0)
    source.free.set()
    assert await asyncio.gather(early, late) == [("a", 0), ("a", 1)]


async def test_read_error_reaches_only_its_requester() -> None:
    ask = QueryBatcher(Source().read)
    answers = await asyncio.gather(*(ask(key) for key in ("a", "odd", "b")), return_exceptions=True)
    assert [answers[0], answers[2]] == [("a", 0), ("b", 0)]
    assert isinstance(answers[1], ValueError)


async def test_client_that_leaves_disconnects_no_other() -> None:
    source = Source()
    ask = QueryBatcher(source.read)
    source.free.clear()
    gone, stays = asyncio.create_task(ask("a")), asyncio.create_task(ask("a"))
    assert await asyncio.to_thread(source.begun.wait, PATIENCE_SECONDS)
    gone.cancel()
    source.free.set()
    assert await stays == ("a", 0)


async def test_reads_are_split_into_short_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    take = QueryBatcher._run_batch

    async def counted(self: Any, keys: list[Any]) -> Any:
        turns.append(len(keys))
        return await take(self, keys)

    monkeypatch.setattr(QueryBatcher, "_run_batch", counted)
    monkeypatch.setattr(database, "MOST_TOGETHER", 4)
    ask = QueryBatcher(Source().read)
    await asyncio.gather(*(ask(f"k{number}") for number in range(10)))
    assert turns == [4, 4, 2]


async def test_permissions_are_read_on_connect_and_after_changes(
    viewers: Any, token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "RECHECK_SECONDS", 3600)
    monkeypatch.setattr(sockets, "LOOK_SECONDS", 0.02)
    looks: list[str] = []
    subject = rights.current_subject

    def noted(credential: rights.SocketCredential) -> Any:
        looks.append(credential.token_id)
        return subject(credential)

    monkeypatch.setattr(rights, "current_subject", noted)
    plaintext = await in_thread(token)("viewer")
    number = await in_thread(rights.revision_of)(rights.TOPIC)
    viewer = viewers(token=plaintext)
    assert await viewer.connect()
    await viewer.listen("policies")
    watch = sockets._watches[asyncio.get_running_loop()]
    while watch.number < number:  # it has checked
        await asyncio.sleep(0.01)
    assert looks == []
    await in_thread(publish_rights_change)()
    while not looks:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)  # several checks of the watch
    assert len(looks) == 1
