"""`?wait=` responds as soon as the workload reaches the requested state, and at its timeout at the latest."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from web.api.workloads import waiting, workloads
from web.api.workloads.waiting import Watch

from .conftest import POD, Api


class Notes:
    """A fake of the watch that records waits and lets the test act during them."""

    def __init__(self) -> None:
        self.asked: list[tuple[frozenset[str], float]] = []
        self.meanwhile: Any = lambda: None

    def wait(self, workload_id: str, states: Any, seconds: float) -> None:
        self.asked.append((frozenset(states), seconds))
        self.meanwhile()


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    made = Notes()
    monkeypatch.setattr(workloads, "watch", made)
    return made


@pytest.fixture
def pending(operator: Api, cluster: Any) -> str:
    return str(operator("POST", "workloads/", POD, kind="application/yaml", status=202).json()["id"])


def test_decided_workload_is_answered_at_once(operator: Api, decided: str, notes: Notes) -> None:
    # Two pods, one placed, one that never fits: the worst verdict is the workload's.
    assert operator.get(f"workloads/{decided}/", wait=30)["state"] == "never-fits"
    assert notes.asked == []


def test_answer_contains_changes_during_the_wait(operator: Api, cluster: Any, pending: str, notes: Notes) -> None:
    from workers.schedule import run

    notes.meanwhile = lambda: run(cluster.pk)
    assert operator.get(f"workloads/{pending}/", wait=30)["state"] == "placed"
    ((states, seconds),) = notes.asked
    assert seconds == 30
    assert "pending" not in states


def test_request_without_wait_returns_immediately(operator: Api, pending: str, notes: Notes) -> None:
    assert operator.get(f"workloads/{pending}/")["state"] == "pending"
    assert notes.asked == []


def test_running_and_finished_can_be_waited_for(operator: Api, pending: str, notes: Notes) -> None:
    for goal in ("running", "finished"):
        operator.get(f"workloads/{pending}/", **{"wait": 1, "for": goal})
    (running, _), (finished, _) = notes.asked
    assert "placed" not in running
    assert running - finished == {"running", "never-fits"}


@pytest.mark.parametrize("query", ["wait=61", "wait=-1", "wait=1.5", "wait=x", "for=ever", "wait=1&wait=2"])
def test_invalid_wait_parameter_is_rejected(operator: Api, pending: str, query: str) -> None:
    problem = operator("GET", f"workloads/{pending}/?{query}", status=400).json()
    assert problem["code"] == "QueryInvalid"


def watched(states: list[dict[str, str]]) -> Watch:
    """Return a watch that returns these states one after the other, and the last one repeatedly."""
    return Watch(lambda ids: states.pop(0) if len(states) > 1 else states[0])


# A wait of an hour ends only by a wake-up: the runner's own limit is shorter.
HOUR = 3600


def test_watch_wakes_requests_for_the_reached_state() -> None:
    watched([{"w": "pending"}, {"w": "pending"}, {"w": "placed"}]).wait("w", {"placed"}, HOUR)


def test_wait_returns_at_its_timeout() -> None:
    watched([{"w": "pending"}]).wait("w", {"placed"}, 0.2)


def test_watch_wakes_requests_for_a_deleted_workload() -> None:
    watched([{}]).wait("w", {"placed"}, HOUR)


def test_failing_watch_wakes_all_requests() -> None:
    def away(ids: set[str]) -> dict[str, str]:
        raise OSError("database unavailable")

    Watch(away).wait("w", {"placed"}, HOUR)


def test_waiting_requests_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MOST_WAITING", 0)
    watched([{"w": "pending"}]).wait("w", {"placed"}, HOUR)


def test_concurrent_waits_share_one_read() -> None:
    read: list[set[str]] = []
    barrier = threading.Barrier(21)

    def states(ids: set[str]) -> dict[str, str]:
        read.append(ids)
        return dict.fromkeys(ids, "placed" if len(ids) == 20 else "pending")

    watch = Watch(states)

    def one(number: int) -> None:
        watch.wait(f"w{number}", {"placed"}, HOUR)
        barrier.wait(60)

    for number in range(20):
        threading.Thread(target=one, args=(number,), daemon=True).start()
    barrier.wait(60)
    assert max(map(len, read)) == 20
