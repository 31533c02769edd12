"""Celery application of the workers: `celery -A hetsched.project.celery:app worker`. Beat is in `beat.py`.

All options are in the settings. The tasks are in `workers` and are found by name. A supervisor or a probe calls `ping`
to check that the broker and a worker respond.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import structlog
from celery import Celery
from celery.signals import heartbeat_sent, import_modules, setup_logging, task_postrun, task_prerun
from django.db import close_old_connections

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hetsched.project.settings")
# Celery would run all system checks, which import the web application, and ignore the result; see `check_settings`.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("hetsched")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.set_default()  # in every thread, because views run in a thread pool


@app.task(name="hetsched.ping", ignore_result=False, expires=60)
def ping() -> str:
    """Respond to show that a worker runs."""
    return "pong"


@import_modules.connect
def check_settings(**_: Any) -> None:
    """Reject an invalid deployment when a worker starts. Celery's own receiver of this signal sets up Django before."""
    from django.core.management.base import BaseCommand, SystemCheckError

    from .checks import STARTUP

    try:
        BaseCommand().check(tags=[STARTUP])
    except SystemCheckError as error:
        sys.exit(str(error))


@setup_logging.connect
def skip_celery_logging(**_: Any) -> None:
    """Leave logging to the settings; connecting to this signal stops Celery from adding its own handlers."""


@task_prerun.connect
def bind_task(task_id: str, task: Any, **_: Any) -> None:
    """Add the task's name and ID to every record that it logs."""
    structlog.contextvars.bind_contextvars(task=task.name, task_id=task_id)


@task_postrun.connect
def unbind_task(**_: Any) -> None:
    structlog.contextvars.unbind_contextvars("task", "task_id")


@task_prerun.connect
@task_postrun.connect
def close_expired_connections(task: Any, **_: Any) -> None:
    """Return the database connection to its pool, as Django does between requests; Celery would close the pool."""
    if not getattr(task.request, "is_eager", False):
        close_old_connections()


@task_postrun.connect
def write_counts(**_: Any) -> None:
    """Write counters and a heartbeat at the end of each task."""
    from hetsched.journal import counters, heartbeat

    counters.flush()
    heartbeat.beat("worker")


@heartbeat_sent.connect
def write_worker_heartbeat(**_: Any) -> None:
    """Write a heartbeat every two seconds while the broker responds."""
    from hetsched.journal import heartbeat

    heartbeat.beat("worker")
