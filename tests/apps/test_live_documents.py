"""Old snapshot + deltas == fresh snapshot, for every topic and any sequence of changes."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.journal.models import OutboxEvent, Topic
from hetsched.journal.publish import difference, merge
from hetsched.placement.models import Workload
from hetsched.placement.queries.topics import snapshot
from tests.listener import Listener
from tests.walk import Walk

pytestmark = pytest.mark.django_db
STEPS = 40


@pytest.mark.parametrize("seed", range(3))
def test_old_snapshot_and_deltas_make_the_fresh_snapshot(seed: int) -> None:
    walk = Walk(seed)
    topics = ["cluster:walk", "decisions", "policies", *(f"node:walk/n{number}" for number in range(6))]
    clients = {topic: Listener(topic) for topic in topics}
    for number in range(STEPS):
        happened = walk.step()
        for workload in Workload.objects.all():
            topic = f"workload:{workload.pk}"
            clients.setdefault(topic, Listener(topic))
        for topic, client in clients.items():
            client.listen()
            fresh = snapshot(topic)
            assert client.revision == fresh.revision
            assert client.document == fresh.data, f"seed {seed}, step {number}, {happened}: {topic}"


def test_no_snapshot_has_a_null_that_a_patch_would_delete() -> None:
    walk = Walk(1)
    for _ in range(30):
        walk.step()
    for topic in ("cluster:walk", "decisions", "policies", "node:walk/n1"):
        assert not _nulls(snapshot(topic).data), topic


def _nulls(value: Any) -> bool:
    if isinstance(value, dict):
        return any(inner is None or _nulls(inner) for inner in value.values())
    return False


def test_every_event_of_a_topic_is_numbered_without_a_gap() -> None:
    walk = Walk(2)
    for _ in range(30):
        walk.step()
    for topic in Topic.objects.all():
        numbers = OutboxEvent.objects.filter(topic=topic.name).order_by("revision").values_list("revision", flat=True)
        assert list(numbers) == list(range(1, topic.revision + 1))


# RFC 7396, appendix A: (document, patch, result), for objects
RFC_CASES = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("document", "patch", "result"), RFC_CASES)
def test_merge_follows_the_rfc(document: Any, patch: Any, result: Any) -> None:
    assert merge(document, patch) == result


def test_difference_is_the_patch_between_two_documents() -> None:
    old = {"same": 1, "gone": 2, "deep": {"x": 1, "y": 2}, "list": [1], "kind": {"a": 1}}
    new = {"same": 1, "deep": {"x": 1, "z": 3}, "list": [1, 2], "kind": "text", "new": {"b": {}}}
    assert difference(old, new) == {
        "gone": None, "deep": {"y": None, "z": 3}, "list": [1, 2], "kind": "text", "new": {"b": {}},
    }  # fmt: skip
    assert merge(old, difference(old, new)) == new
