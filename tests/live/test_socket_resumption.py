"""Clients that receive merged events or resume from a revision end with the current document."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.inventory.actions import cordon, uncordon
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import SYSTEM
from hetsched.journal.publish import OutboxEvent, merge, message
from web.live import hub
from web.live.spans import spans

from .conftest import PATIENCE_SECONDS, Viewer, hold_topic_openings, in_thread
from .test_viewer_convergence import Life, fresh

TOPICS = ("cluster:lab", "decisions", "policies")
KEYS = st.sampled_from("abc")
PATCHES = st.recursive(
    st.none() | st.integers(0, 3), lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
DOCUMENTS = st.dictionaries(KEYS, PATCHES, max_size=3)


@given(DOCUMENTS, st.lists(DOCUMENTS, max_size=6), st.integers(0, 6))
def test_span_has_the_effect_of_its_events_from_any_revision(
    start: dict[str, Any], patches: list[dict[str, Any]], had: int
) -> None:
    start = merge({}, start)
    events = [(number, message("t", number, patch)) for number, patch in enumerate(patches, 1)]
    states = [start]
    for patch in patches:
        states.append(merge(states[-1], patch))
    revision = min(had, len(patches))
    document, expected = states[revision], 0
    for since, last, text in spans("t", events):
        sent = msgspec.json.decode(text)
        assert (since, sent["revision"], sent.get("since", last - 1)) == (expected, last, since)
        expected = last
        if last > revision:
            document = merge(document, sent["data"])
    assert (expected, document) == (len(patches), states[-1])


def test_gap_is_not_merged() -> None:
    events = [(number, message("t", number, {"n": number})) for number in (1, 2, 4, 5)]
    assert [(since, last) for since, last, _ in spans("t", events)] == [(0, 2), (3, 5)]


class Page(Viewer):
    """A client that resumes topics as the console's pages do."""

    async def follow(self, *names: str) -> list[str]:
        """Subscribe from the current revisions; return the first message of each topic."""
        since = {name: self.revisions[name] for name in names if name in self.revisions}
        command = {"action": "subscribe", "topics": names, "since": since, "merge": True}
        await self.say(msgspec.json.encode(command).decode())
        begun: dict[str, str] = {}
        while len(begun) < len(names):
            message = await self.receive()
            begun.setdefault(message["topic"], message["type"])
        return [begun[name] for name in names]

    async def receive(self, timeout: float = PATIENCE_SECONDS) -> dict[str, Any]:
        output = await self.socket.receive_output(timeout)
        message: dict[str, Any] = msgspec.json.decode(output["text"])
        self.messages.append(message)
        topic, revision = message["topic"], message["revision"]
        if message["type"] == "snapshot":
            self.documents[topic], self.revisions[topic] = message["data"], revision
        elif message["type"] == "resumed":
            assert revision == self.revisions[topic]
        elif message["type"] == "delta" and revision > self.revisions[topic]:
            assert message.get("since", revision - 1) <= self.revisions[topic], "a gap"
            self.documents[topic] = merge(self.documents[topic], message["data"])
            self.revisions[topic] = revision
        return message


@pytest.fixture
async def pages(token: Any, cluster: Cluster) -> Any:
    """Return a factory of clients; `before` is a client whose documents the new one takes over."""
    plaintext = await in_thread(token)("viewer")
    made: list[Page] = []

    async def make(before: Page | None = None) -> Page:
        page = Page(token=plaintext)
        made.append(page)
        assert await page.connect()
        if before is not None:
            page.documents, page.revisions = dict(before.documents), dict(before.revisions)
        return page

    yield make
    for page in made:
        await page.leave()
    await hub.stop_hub()


async def assert_current(page: Page) -> None:
    for topic in list(page.documents):
        revision, document = await fresh(topic)
        await page.receive_until(topic, revision)
        assert page.documents[topic] == document, topic


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("seed", range(3))
async def test_random_changes_with_lost_sockets_converge(
    pages: Callable[..., Any], cluster: Cluster, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "TICK_SECONDS", 0.02)
    life, page = Life(cluster, seed), await pages()
    assert await page.follow(*TOPICS) == ["snapshot"] * 3
    for _ in range(40):
        await in_thread(life.step)()
        chance = life.random.random()
        if chance < 0.2:
            await assert_current(page)
        elif chance < 0.35:
            await page.leave()
            page = await pages(page)
            await in_thread(life.step)()
            assert await page.follow(*TOPICS) == ["resumed"] * 3
    await assert_current(page)


@pytest.mark.django_db(transaction=True)
async def test_events_within_a_tick_are_one_message(
    pages: Callable[..., Any], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "TICK_SECONDS", 2.0)
    life, page = Life(cluster, 1), await pages()
    await page.follow("cluster:lab")
    for _ in range(6):
        await in_thread(life.submit)()
    await assert_current(page)
    assert len([message for message in page.messages if message["type"] == "delta"]) < 6


@pytest.mark.django_db(transaction=True)
async def test_restarted_process_resumes_all_sockets(pages: Callable[..., Any], cluster: Cluster) -> None:
    life, page = Life(cluster, 2), await pages()
    await page.follow(*TOPICS)
    await page.leave()
    await hub.stop_hub()
    for _ in range(5):
        await in_thread(life.submit)()
    page = await pages(page)
    assert await page.follow(*TOPICS) == ["resumed"] * 3
    await assert_current(page)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("lost", ["the events are pruned", "it has more than there is"])
async def test_client_that_cannot_resume_gets_a_snapshot(
    pages: Callable[..., Any], cluster: Cluster, lost: str
) -> None:
    life, page = Life(cluster, 3), await pages()
    await page.follow("cluster:lab")
    await page.leave()
    await hub.stop_hub()
    await in_thread(life.submit)()
    if lost == "the events are pruned":
        await in_thread(OutboxEvent.objects.all().delete)()
    else:
        page.revisions["cluster:lab"] += 1000
    page = await pages(page)
    assert await page.follow("cluster:lab") == ["snapshot"]
    await assert_current(page)


@pytest.mark.django_db(transaction=True)
async def test_page_of_a_closed_topic_gets_a_snapshot(pages: Callable[..., Any], cluster: Cluster) -> None:
    """A page rendered before the first subscription lacks the changes until then, which have no events."""
    topic, page = "node:lab/n1", await pages()
    page.revisions[topic], page.documents[topic] = await fresh(topic)
    assert page.revisions[topic] == 0
    await in_thread(cordon)(cluster, "n1", actor=SYSTEM, reason="work")
    assert not await in_thread(OutboxEvent.objects.filter(topic=topic).exists)()
    assert await page.follow(topic) == ["snapshot"]
    await in_thread(uncordon)(cluster, "n1", actor=SYSTEM, reason="done")
    await assert_current(page)
    assert page.revisions[topic] == 2


@pytest.mark.django_db(transaction=True)
async def test_first_subscription_waits_for_its_cluster_without_other_sockets(
    pages: Callable[..., Any], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long transaction on a cluster, such as an import, delays only the sockets that open a topic of the cluster."""
    begun, ended = hold_topic_openings(monkeypatch)
    first, second = await pages(), await pages()
    await first.send("subscribe", "node:lab/n1")
    try:
        assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
        await second.send("subscribe", "cluster:lab")
        assert (await second.receive(5.0))["type"] == "snapshot"
    finally:
        ended.set()
    assert (await first.receive())["type"] == "snapshot"
    assert first.revisions["node:lab/n1"] == 1
