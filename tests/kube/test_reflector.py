"""The events of the reflector match the API server through deletions, pages and expired watch history."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest

from hetsched.adapters.kubernetes import api as calls
from hetsched.adapters.kubernetes.api import Api, Resource
from hetsched.adapters.kubernetes.reflector import Deleted, Event, Reflector, Synced, Upserted

pytestmark = pytest.mark.needs("etcd", "kube-apiserver")
NODES = Resource("", "v1", "nodes", "Node")


def make(api: Api, name: str) -> None:
    api.send(
        "POST", NODES.path(), json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}).encode()
    )


def news(events: Iterator[Event], count: int) -> list[Event]:
    """Return the next events that concern objects."""
    selected = (event for event in events if isinstance(event, (Upserted, Deleted, Synced)))
    return list(itertools.islice(selected, count))


def keys(events: list[Event]) -> list[str]:
    return [f"{type(event).__name__} {getattr(event, 'key', '')}".strip() for event in events]


def test_list_is_paginated_and_complete(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "PAGE", 2)
    for number in range(5):
        make(api, f"n{number}")
    items, version = api.list_all(NODES)
    assert [json.loads(item)["metadata"]["name"] for item in items] == ["n0", "n1", "n2", "n3", "n4"]
    assert version


def test_events_after_the_list_arrive_in_order(api: Api) -> None:
    make(api, "a")
    events = Reflector(api, NODES, sleep=lambda _: None).events()
    assert keys(news(events, 2)) == ["Upserted a", "Synced"]
    make(api, "b")
    api.send("DELETE", NODES.path(name="a"))
    assert keys(news(events, 2)) == ["Upserted b", "Deleted a"]


def test_list_after_a_gap_reports_the_deletions_in_between(api: Api) -> None:
    make(api, "a")
    make(api, "b")
    reflector = Reflector(api, NODES, sleep=lambda _: None)
    assert keys(news(reflector.events(), 3)) == ["Upserted a", "Upserted b", "Synced"]
    api.send("DELETE", NODES.path(name="a"))
    reflector._version = ""  # the effect of 410 Gone
    assert keys(news(reflector.events(), 2)) == ["Deleted a", "Synced"]


def test_path_traversal_in_names_is_rejected() -> None:
    for name in ("..", "a/b", "A", "a..b", "-a", "a?x"):
        with pytest.raises(ValueError, match="DNS"):
            NODES.path(name=name)
