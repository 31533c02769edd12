"""The informer collects events for a moment; when a pod is pending, it processes the available events immediately."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from hetsched.adapters.kubernetes.reflector import Deleted, Event, Upserted
from hetsched.adapters.kubernetes.resources import PODS
from hetsched.scheduling.informer import Informer
from hetsched.scheduling.resource_watches import SyncState


class News(queue.Queue[Any]):
    """A queue without further events; it counts how often the consumer would have waited for more."""

    waited = 0

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self.empty() and block:
            self.waited += 1
        return super().get(block=False)


class Bindings:
    """No bindings, and so no confirmations."""

    has_unprocessed = False

    def is_confirmation(self, event: Event) -> bool:
        return False


def waits_after(event: Event) -> int:
    """Return how often a deciding informer process waits for more events after this one."""
    nothing: Any = None
    lease: Any = SimpleNamespace(cluster_id=-1, epoch=1)
    host: Any = SimpleNamespace(bindings=Bindings())
    follower = Informer(lease, nothing, threading.Event(), host=host)
    follower.watches.events = news = News()
    news.put((PODS, event))
    follower._collect_events()
    return news.waited


def a_pod(node: str) -> Upserted:
    spec = f'"nodeName":"{node}","containers":[]' if node else '"containers":[]'
    return Upserted("web/p", f'{{"metadata":{{"name":"p","namespace":"web","uid":"u"}},"spec":{{{spec}}}}}'.encode())


@pytest.mark.parametrize(
    ("event", "waits"),
    [
        pytest.param(a_pod(""), 0, id="it waits for its node"),
        pytest.param(a_pod("n1"), 1, id="it has one"),
        pytest.param(Deleted("web/p", b""), 1, id="it is no more"),
    ],
)
def test_informer_waits_for_more_events_without_pending_pods(event: Event, waits: int) -> None:
    assert waits_after(event) == waits


def test_position_follows_events_of_watches_only() -> None:
    state = SyncState()
    state.note(Upserted("web/p", b"{}", 30))  # an item of a list is often newer than the items after it
    assert (state.position, state.changed_version) == (0, 30)
    state.note(Upserted("web/q", b"{}", 31, is_watched=True))
    assert (state.position, state.changed_version, state.keys) == (31, 31, {"web/p", "web/q"})
    state.note(Deleted("web/q", b"{}", 32, is_watched=True))
    assert (state.position, state.changed_version, state.keys) == (32, 32, {"web/p"})


def test_informer_that_may_not_decide_waits_for_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bindings without a valid lease still wait here; the informer only receives responses, without a busy loop."""
    advanced: list[bool] = []
    bindings = SimpleNamespace(has_unsent=True, advance=lambda: advanced.append(True))
    host: Any = SimpleNamespace(bindings=bindings, has_decided=False, is_saturated=False)
    lease: Any = SimpleNamespace(cluster_id=-1, epoch=1)
    nothing: Any = None
    follower = Informer(lease, nothing, threading.Event(), host=host, is_leader=lambda: False)
    for step in ("_collect_events", "_release_orphans"):
        monkeypatch.setattr(follower, step, lambda: None)
    follower.iterate()
    assert (advanced, follower._busy) == ([True], False)
