"""Arriving pods wait in memory for their first decision, and are written at most once."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import msgspec
import pytest

from hetsched.contracts.objects.observed import ObservedPod
from hetsched.scheduling import arrival_buffer
from hetsched.scheduling.arrival_buffer import MOST_JOINING, WAIT_SECONDS, ArrivalBuffer
from tests.builders import a_pod
from tests.situations import arrived


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a clock that shows `now`, in seconds."""
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(arrival_buffer, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def pending(name: str, *, uid: str = "", version: str = "1") -> ObservedPod:
    spec = a_pod(name).build()
    return ObservedPod("default", name, uid or name, version=version, scheduler_name="hetsched", spec=spec)


def bound(name: str) -> ObservedPod:
    return msgspec.structs.replace(pending(name, version="2"), node_name="n1")


def buffer_of(*names: str) -> ArrivalBuffer:
    return arrived(pending(name) for name in names)


def names(pods: Iterable[ObservedPod]) -> list[str]:
    return [pod.name for pod in pods]


def test_new_pending_pods_stay_in_the_order_of_their_arrival() -> None:
    assert names(buffer_of("b", "a").pods.values()) == ["b", "a"]


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(bound("p"), id="assigned to a node"),
        pytest.param(msgspec.structs.replace(pending("p"), deleting=True), id="deleted"),
        pytest.param(
            msgspec.structs.replace(pending("p"), scheduler_name="default-scheduler"), id="of another scheduler"
        ),
        pytest.param(msgspec.structs.replace(pending("p"), spec=None), id="unreadable"),
    ],
)
def test_other_new_pods_are_returned(pod: ObservedPod) -> None:
    buffer = ArrivalBuffer()
    buffer.note_new(pod.key)
    assert (buffer.take([pod], accepts=True), buffer.pods) == ([pod], {})


def test_known_pods_are_returned() -> None:
    buffer = ArrivalBuffer()
    assert names(buffer.take([pending("p")], accepts=True)) == ["p"]
    buffer.note_new("default/q")
    buffer.exclude(["default/q"])
    assert names(buffer.take([pending("q")], accepts=True)) == ["q"]


def test_changed_pod_replaces_its_earlier_state() -> None:
    buffer = buffer_of("a", "b")
    assert buffer.take([pending("a", version="2")], accepts=True) == []
    assert [(pod.name, pod.version) for pod in buffer.pods.values()] == [("a", "2"), ("b", "1")]


def test_pod_that_another_scheduler_binds_leaves() -> None:
    buffer = buffer_of("p")
    assert (buffer.take([bound("p")], accepts=True), buffer.pods) == ([bound("p")], {})


def test_state_that_is_written_is_not_followed_by_an_older_one() -> None:
    """If this process may not place pods any more, a change is written, and the state before it is dropped."""
    buffer = buffer_of("p", "q")
    assert names(buffer.take([pending("p", version="2")], accepts=False)) == ["p"]
    assert names(buffer.settle(placed=(), tried=(), others_wait=False)) == ["q"]


def test_deleted_pod_leaves_and_its_successor_is_not_arriving() -> None:
    buffer = buffer_of("p")
    buffer.note_deleted("default/p")
    buffer.note_new("default/p")
    successor = pending("p", uid="another")
    assert (buffer.take([successor], accepts=True), buffer.pods) == ([successor], {})


def test_tried_pods_leave_and_those_without_a_node_need_rows() -> None:
    buffer = buffer_of("placed", "rejected", "untried")
    tried = {"default/placed", "default/rejected"}
    assert names(buffer.settle(placed={"default/placed"}, tried=tried, others_wait=True)) == ["rejected"]
    assert names(buffer.pods.values()) == ["untried"]


def test_pod_that_waits_too_long_needs_a_row(clock: SimpleNamespace) -> None:
    buffer = buffer_of("first")
    clock.now += WAIT_SECONDS
    buffer.note_new("default/second")
    buffer.take([pending("first", version="2"), pending("second")], accepts=True)
    assert buffer.settle(placed=(), tried=(), others_wait=True) == []
    clock.now += 0.1
    assert names(buffer.settle(placed=(), tried=(), others_wait=True)) == ["first"]
    assert names(buffer.pods.values()) == ["second"]


def test_many_pods_join_the_queue_in_several_transactions() -> None:
    expected = [f"p-{number}" for number in range(MOST_JOINING + 2)]
    buffer = buffer_of("placed", *expected)
    first = buffer.settle(placed={"default/placed"}, tried=(), others_wait=False)
    assert len(first) == MOST_JOINING
    assert names(buffer.pods.values()) == expected[-2:]
    assert names([*first, *buffer.settle(placed=(), tried=(), others_wait=False)]) == expected
    assert not buffer.pods
