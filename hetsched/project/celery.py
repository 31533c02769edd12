"""The Celery application: `celery -A hetsched.project.celery:app worker|beat`.

Rule: settings hold every option; the tasks lie in `workers` and are found by name. `ping` is the round trip by which
a supervisor or a probe learns that the broker and a worker both answer.
"""

from __future__ import annotations

import os
from typing import Any

import structlog
from celery import Celery
from celery.signals import (
    beat_init,
    before_task_publish,
    heartbeat_sent,
    setup_logging,
    task_postrun,
    task_prerun,
)
from django.db import close_old_connections

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hetsched.project.settings")

app = Celery("hetsched")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.set_default()  # for every thread: views run in a pool of them


@app.task(name="hetsched.ping", ignore_result=False, expires=60)
def ping() -> str:
    """Answer, to prove that a worker is there."""
    return "pong"


@setup_logging.connect
def keep_our_logging(**_: Any) -> None:
    """Leave logging to the settings; connecting to this signal stops Celery from adding its own handlers."""


@task_prerun.connect
def bind_task(task_id: str, task: Any, **_: Any) -> None:
    """Put the task's name and id on every record that it logs."""
    structlog.contextvars.bind_contextvars(task=task.name, task_id=task_id)


@task_postrun.connect
def unbind_task(**_: Any) -> None:
    structlog.contextvars.unbind_contextvars("task", "task_id")


@task_prerun.connect
@task_postrun.connect
def give_connections_back(task: Any, **_: Any) -> None:
    """Give a connection back to its pool, as a web server does between requests; Celery would end the pool with it."""
    if not getattr(task.request, "is_eager", False):
        close_old_connections()


@task_postrun.connect
def tell_counts(**_: Any) -> None:
    """Write what the task counted; it is done, so nothing else would."""
    from hetsched.journal import counters, heartbeat

    counters.flush()
    heartbeat.beat("worker")


@heartbeat_sent.connect
def worker_lives(**_: Any) -> None:
    """Leave a sign of life, every two seconds while the message store answers."""
    from hetsched.journal import heartbeat

    heartbeat.beat("worker")


@beat_init.connect
def beat_lives(**_: Any) -> None:
    """Leave a sign of life whenever this process rings a bell."""
    from hetsched.journal import heartbeat

    def rung(**_: Any) -> None:
        heartbeat.beat("beat")

    before_task_publish.connect(rung, weak=False)
