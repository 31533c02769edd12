"""`hetsched health PROCESS`: probe one process from inside its container.

Workers, beat and the informer do not have a port, and probes through the message store would make Kubernetes kill
healthy processes while the store is down. A process is healthy if its heartbeat file is recent, which does not require
the network. A worker does not write heartbeats while the store is down; the probe does not fail a worker in that case.
The web process is probed over HTTP.
"""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from enum import StrEnum
from typing import Annotated

import typer

from ..output import note
from .standalone import default_data_dir

EXIT_UNHEALTHY = 1
QUIET_SECONDS = 120.0


class Process(StrEnum):
    """Processes that can be probed."""

    WEB = "web"
    WORKER = "worker"
    BEAT = "beat"
    WATCH = "watch"


def health(
    process: Annotated[Process, typer.Argument(help="Process to check on this machine or in this container.")],
    port: Annotated[int, typer.Option(help="Port of the web process.", min=1, max=65535)] = 8000,
    component: Annotated[str, typer.Option(help="Component of the server to check; only with `health web`.")] = "",
) -> None:
    """Check a process of this machine. Exit codes: 0 healthy, 1 unhealthy, with the reason."""
    trouble = _web(port, component) if process is Process.WEB else _heartbeat_problem(process)
    if trouble:
        note(trouble)
        raise typer.Exit(EXIT_UNHEALTHY)


def _web(port: int, component: str) -> str:
    path = f"readyz?component={component}" if component else "livez"
    try:
        with urllib.request.urlopen(f"http://localhost:{port}/{path}", timeout=5):
            return ""
    except urllib.error.HTTPError as error:
        return f"web responds with {error.code}: {error.read(300).decode(errors='replace')}"
    except OSError as error:
        return f"web does not respond: {error}"


def _heartbeat_problem(process: Process) -> str:
    try:
        quiet = time.time() - (default_data_dir() / "pulse" / process.value).stat().st_mtime
    except OSError:
        quiet = None
    if quiet is not None and quiet < QUIET_SECONDS:
        return ""
    if process is Process.WORKER and not _store_answers():
        note("the message store does not respond; the worker waits for it")
        return ""
    return f"{process.value}: no heartbeat" + (f" for {quiet:.0f} s" if quiet is not None else "")


def _store_answers() -> bool:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hetsched.project.settings")
    os.environ.setdefault("HETSCHED_LOG_LEVEL", "error")
    import django
    from celery import current_app

    django.setup()
    current_app.config_from_object("django.conf:settings", namespace="CELERY")
    try:
        with current_app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=3)
            return True
    except Exception:  # on any error of the broker's client, the broker is assumed to be down
        return False
