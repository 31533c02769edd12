"""A periodic task runs once per slot, with any number of beat processes and any delay of the workers."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from hetsched.journal import counters, metric_names, periodic_locks
from hetsched.journal.models import Figure
from workers import canary, periodic_tasks

pytestmark = pytest.mark.django_db
WORK, SECONDS = "workers.canary.run", 10


@pytest.fixture(autouse=True)
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the queues whose canary task ran."""
    queues: list[str] = []
    monkeypatch.setattr(canary.run, "run", queues.append)
    return queues


def _slots() -> list[float]:
    return [sample.value for sample in counters.samples(metric_names.TICKS)]


def _pass(seconds: float) -> None:
    for row in Figure.objects.filter(name=metric_names.TICKS.name):
        Figure.objects.filter(pk=row.pk).update(at=row.at - timedelta(seconds=seconds))


def test_slot_is_taken_once(done: list[str]) -> None:
    assert [periodic_tasks.run(WORK, SECONDS, ["io"]) for _ in range(5)] == [True, False, False, False, False]
    _pass(SECONDS)
    assert [periodic_tasks.run(WORK, SECONDS, ["io"]) for _ in range(5)] == [True, False, False, False, False]
    assert done == ["io", "io"]
    assert _slots() == [2]


def test_task_queues_have_separate_slots(done: list[str]) -> None:
    assert periodic_tasks.run(WORK, SECONDS, ["io"])
    assert periodic_tasks.run(WORK, SECONDS, ["schedule"])
    assert done == ["io", "schedule"]


def test_clock_set_back_does_not_delay_slots(done: list[str]) -> None:
    assert periodic_tasks.run(WORK, SECONDS, ["io"])
    _pass(-3600)
    assert periodic_tasks.run(WORK, SECONDS, ["io"])


def test_wrong_clock_of_a_process_takes_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    assert periodic_locks.acquire(WORK, SECONDS)
    wrong = timezone.now() + timedelta(minutes=10)
    monkeypatch.setattr(timezone, "now", lambda: wrong)
    assert not periodic_locks.acquire(WORK, SECONDS)
