"""Start beat: `python -m hetsched.project.beat`.

Beat uses the settings of the workers and sends the periodic tasks by name. It does not set up Django, does not import
tasks and does not need the command line of Celery, which together take most of its CPU time and memory at start.
"""

from __future__ import annotations

import logging.config
import os
import sys
from typing import Any

from celery import Celery
from celery.signals import before_task_publish, setup_logging
from django.conf import settings

from hetsched.journal import heartbeat

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hetsched.project.settings")

app = Celery("hetsched", fixups=[])
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.imports = []


@setup_logging.connect
def configure_logging(**_: Any) -> None:
    """Configure logging as `django.setup` does; connecting to this signal stops Celery from adding its own handlers."""
    logging.config.dictConfig(settings.LOGGING)


@before_task_publish.connect
def write_heartbeat(**_: Any) -> None:
    """Write a heartbeat each time beat publishes a task."""
    heartbeat.beat("beat")


if __name__ == "__main__":
    heartbeat.beat("beat")  # also creates the data folder, which contains the file with the schedule
    if not os.access(settings.DATA_DIR, os.W_OK):
        sys.exit(f"hetsched: HETSCHED_DATA: {settings.DATA_DIR} is not a writable folder [DataDirInvalid]")
    app.Beat().run()
