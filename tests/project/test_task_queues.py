"""Task queues: the queue of each task, the process that serves it, and the time limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from celery.canvas import Signature
from django.conf import settings

from hetsched.cli.server.standalone import worker_programs
from hetsched.placement import dispatch
from hetsched.project.celery import app

ROOT = Path(__file__).parents[2]


def queues_of(command: tuple[str, ...] | list[str]) -> set[str]:
    """Return the queues that a worker serves according to its command line."""
    for place, word in enumerate(command):
        if word == "-Q":
            return set(command[place + 1].split(","))
        if word.startswith("--queues="):
            return set(word.removeprefix("--queues=").split(","))
    return set()


def of_standalone(count: int) -> list[set[str]]:
    return [queues_of(program.argv) for program in worker_programs("standalone", count, None)]


def of_compose() -> list[set[str]]:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    return [found for service in services if (found := queues_of(service.get("command", [])))]


@pytest.mark.parametrize("served", [of_standalone(1), of_standalone(3), of_compose()])
def test_previews_have_a_process_of_their_own(served: list[set[str]]) -> None:
    """Regression: two previews took both processes of a standalone server, and no pod was decided for 80 s."""
    assert [queues for queues in served if "preview" in queues] == [{"preview"}]
    assert set().union(*served) == set(settings.CELERY_TASK_QUEUES)


def test_preview_process_runs_one_task_at_a_time() -> None:
    (preview,) = [program for program in worker_programs("standalone", 2, None) if program.name == "preview"]
    assert preview.argv[preview.argv.index("-c") + 1] == "1"
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert "--concurrency=1" in services["worker-preview"]["command"]


def test_only_the_process_for_previews_runs_on_demand(tmp_path: Path) -> None:
    programs = worker_programs("standalone", 2, tmp_path / "store.sock")
    assert [program.name for program in programs if program.demand is not None] == ["preview"]
    assert not any(program.demand for program in worker_programs("standalone", 2, None)), "an external store"


@pytest.mark.parametrize(
    ("task", "queue"), [(dispatch.REPLAY, "preview"), (dispatch.SCHEDULE, "schedule"), (dispatch.BIND, "io")]
)
def test_wake_up_uses_the_queue_of_its_task(task: str, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(Signature, "apply_async", lambda self, **how: sent.append(how))
    dispatch.send(1, task)
    assert [how["queue"] for how in sent] == [queue]
    assert app.amqp.router.route({}, task)["queue"].name == queue


def test_task_time_limits_are_below_the_visibility_timeout() -> None:
    app.loader.import_default_modules()
    redelivered = settings.CELERY_BROKER_TRANSPORT_OPTIONS["visibility_timeout"]
    assert settings.CELERY_TASK_SOFT_TIME_LIMIT < settings.CELERY_TASK_TIME_LIMIT < redelivered
    assert app.conf.task_time_limit == settings.CELERY_TASK_TIME_LIMIT
    assert app.tasks[dispatch.SCHEDULE].time_limit < settings.CELERY_TASK_TIME_LIMIT
    longer = {name for name, task in app.tasks.items() if (task.time_limit or 0) > redelivered}
    assert longer == {dispatch.REPLAY}
    assert app.tasks[dispatch.REPLAY].time_limit > settings.HETSCHED_REPLAY_SECONDS


def test_decision_canary_is_sent_three_times_per_readiness_timeout() -> None:
    from web.api.monitoring.health import LATE_DECISIONS_SECONDS

    entry = settings.CELERY_BEAT_SCHEDULE["canary-schedule"]
    assert 3 * entry["schedule"].total_seconds() < LATE_DECISIONS_SECONDS
    assert entry["options"]["queue"] == "schedule"
