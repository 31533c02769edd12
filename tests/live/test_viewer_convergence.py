"""An old snapshot plus deltas equals a fresh snapshot; lost events are detected and repaired."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hetsched.inventory.actions import cordon, uncordon
from hetsched.inventory.models import Cluster
from hetsched.journal import publish
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import cancel, release, retry, set_priority, submit
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod, Workload
from hetsched.placement.queries import topics
from hetsched.policies.actions import activate, rollback, save_draft
from hetsched.policies.effective import active_specs
from tests.builders import a_pod
from web.live import hub
from web.live.socket_reads import redacted
from workers.schedule import run as schedule

from .conftest import Viewer, in_thread

pytestmark = pytest.mark.django_db(transaction=True)
TOPICS = ("cluster:lab", "node:lab/n0", "node:lab/n1", "decisions", "policies")


class Life:
    """Random changes of one cluster, made through actions."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.made = 0

    def step(self) -> None:
        self.random.choice(
            (
                *(self.submit, self.submit, self.place, self.place, self.finish, self.cancel, self.retry),
                *(self.priority, self.cordon, self.policy),
            )
        )()

    def submit(self) -> Workload:
        pods = []
        for _ in range(self.random.randint(1, 4)):
            self.made += 1
            pods.append(a_pod(f"p{self.made}").cpu(self.random.choice(["1", "3", "9"])).build())
        return Workload.objects.get(pk=submit(self.cluster, pods, actor=SYSTEM).workload_id)

    def place(self) -> None:
        schedule(self.cluster.pk)

    def finish(self) -> None:
        if pod := self._one(Pod.objects.filter(state="placed")):
            release(self.cluster.pk, [pod.pk], to=self.random.choice([State.SUCCEEDED, State.FAILED]), reason="ended")

    def cancel(self) -> None:
        if workload := self._one(Workload.objects.all()):
            cancel(workload, actor=SYSTEM, reason="enough")

    def retry(self) -> None:
        if workload := self._one(Workload.objects.filter(state__in=["failed", "never-fits"])):
            retry(workload, actor=SYSTEM, reason="again")

    def priority(self) -> None:
        if workload := self._one(Workload.objects.all()):
            set_priority(workload, self.random.randint(-5, 5), actor=SYSTEM, reason="order")

    def cordon(self) -> None:
        self.random.choice([cordon, uncordon])(
            self.cluster, f"n{self.random.randint(0, 3)}", actor=SYSTEM, reason="work"
        )

    def policy(self) -> None:
        spec = active_specs({"spread"})["spread"]
        version = save_draft(spec, actor=SYSTEM).version
        if self.random.random() < 0.5:
            activate("spread", version, actor=SYSTEM, reason="better")
            if self.random.random() < 0.5:
                rollback("spread", actor=SYSTEM, reason="worse")

    def _one(self, rows: Any) -> Any:
        return self.random.choice(list(rows) or [None])


@pytest.fixture
async def watching(viewers: Any, token: Any, cluster: Cluster) -> Callable[..., Any]:
    plaintext = await in_thread(token)("viewer")

    async def make(*names: str) -> Viewer:
        viewer: Viewer = viewers(token=plaintext)
        assert await viewer.connect()
        await viewer.listen(*names)
        return viewer

    return make


async def fresh(topic: str) -> tuple[int, Any]:
    """Return a topic's revision and document as parsed JSON, as an unlimited socket gets them."""
    found = await in_thread(topics.snapshot)(topic)
    text = publish.message(topic, found.revision, found.data, "snapshot")
    return found.revision, msgspec.json.decode(redacted(topic, text, None))["data"]


async def assert_current(viewer: Viewer) -> None:
    """Catch up, then compare every document with a fresh snapshot."""
    for topic in list(viewer.documents):
        revision, document = await fresh(topic)
        await viewer.receive_until(topic, revision)
        assert viewer.documents[topic] == document, topic


@pytest.mark.parametrize("seed", range(4))
async def test_random_changes_converge(watching: Any, cluster: Cluster, seed: int) -> None:
    life = Life(cluster, seed)
    workload = await in_thread(life.submit)()
    viewer = await watching(*TOPICS, f"workload:{workload.pk}")
    for _ in range(40):
        await in_thread(life.step)()
        if life.random.random() < 0.2:
            await assert_current(viewer)
    await assert_current(viewer)


@pytest.mark.parametrize("seed", range(2))
async def test_reader_with_an_overflowed_queue_catches_up(
    watching: Any, cluster: Cluster, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "QUEUE_EVENTS", 4)
    viewer = await watching(*TOPICS)
    life = Life(cluster, seed)
    for _ in range(3):
        viewer.awake.clear()
        for _ in range(30):
            await in_thread(life.step)()
        viewer.awake.set()
        await assert_current(viewer)
    assert len(viewer.messages) < 90


async def test_lost_events_are_detected_within_two_checks(
    watching: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "LOOK_SECONDS", 0.05)
    viewer = await watching("cluster:lab")
    with monkeypatch.context() as lossy:
        lossy.setattr(publish, "_send", lambda events: None)
        await in_thread(Life(cluster, 1).submit)()
    await assert_current(viewer)
    assert [message["type"] for message in viewer.messages] == ["snapshot", "snapshot"]


async def test_missing_event_is_detected_by_the_next_event(
    watching: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "LOOK_SECONDS", 3600.0)
    viewer = await watching("cluster:lab")
    life = Life(cluster, 1)
    with monkeypatch.context() as lossy:
        lossy.setattr(publish, "_send", lambda events: None)
        await in_thread(life.submit)()
    await in_thread(life.submit)()
    await assert_current(viewer)


async def test_event_repeated_by_the_sweep_is_sent_once(watching: Any, cluster: Cluster) -> None:
    viewer = await watching("cluster:lab")
    life = Life(cluster, 1)
    await in_thread(life.submit)()
    await assert_current(viewer)
    await in_thread(lambda: publish.OutboxEvent.objects.update(published_at=None))()
    assert await in_thread(lambda: publish.relay(older_than_seconds=-1))()
    await in_thread(life.submit)()
    await assert_current(viewer)
    assert [message["revision"] for message in viewer.messages] == sorted({m["revision"] for m in viewer.messages})


async def test_resubscription_gets_a_snapshot_and_unsubscription_ends_deltas(watching: Any, cluster: Cluster) -> None:
    viewer = await watching("cluster:lab")
    await viewer.send("refetch", "cluster:lab")
    assert (await viewer.receive())["type"] == "snapshot"
    await viewer.send("unsubscribe", "cluster:lab")
    await viewer.send("subscribe", "policies")
    await viewer.receive()
    await in_thread(Life(cluster, 1).submit)()
    assert await viewer.socket.receive_nothing(0.2)


async def test_node_short_name_is_kept_in_messages_to_its_client(watching: Any, cluster: Cluster) -> None:
    viewer = await watching("node:n0")
    await in_thread(lambda: cordon(cluster, "n0", actor=SYSTEM, reason="work"))()
    delta = await viewer.receive()
    assert (delta["topic"], delta["type"]) == ("node:n0", "delta")
    assert viewer.documents["node:n0"] == (await fresh("node:lab/n0"))[1]


async def test_end_of_a_topic_is_sent(watching: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "KEPT_SECONDS", 0.0)
    workload = await in_thread(Life(cluster, 1).submit)()
    topic = f"workload:{workload.pk}"
    viewer = await watching(topic)
    await in_thread(workload.delete)()
    await viewer.send("refetch", topic)
    assert (await viewer.receive())["data"]["code"] == "TopicUnknown"


async def test_limited_token_gets_its_own_workloads_only(viewers: Any, token: Any, cluster: Cluster) -> None:
    def submitted(namespace: str) -> str:
        return submit(cluster, [a_pod("p", namespace).build()], actor=SYSTEM).workload_id

    own, other = await in_thread(submitted)("team"), await in_thread(submitted)("rest")
    viewer = viewers(token=await in_thread(token)("submitter", "team"))
    assert await viewer.connect()
    await viewer.listen("cluster:lab", f"workload:{own}")
    for topic in ("decisions", "node:lab/n0"):
        await viewer.send("subscribe", topic)
        answer = await viewer.receive()
        assert (answer["topic"], answer["data"]["code"]) == (topic, "PermissionDenied")
    # A workload of another namespace gets the same response as one that does not exist.
    invented, answers = "0" * len(other), []
    for workload in (other, invented):
        await viewer.send("subscribe", f"workload:{workload}")
        answer = await viewer.receive()
        assert answer["data"]["code"] == "TopicUnknown"
        answers.append(str(answer).replace(workload, "ID"))
    assert answers[0] == answers[1]
