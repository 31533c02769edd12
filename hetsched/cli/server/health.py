"""`hetsched health PROCESS`: probe one process from inside its container.

Workers, beat and the informer do not have a port, and probes through the message store would make Kubernetes kill
healthy processes while the store is down. A process is healthy if its heartbeat file is recent, which does not require
the network. A worker does not write heartbeats while the store is down; the probe does not fail a worker in that case.
The web process is probed over HTTP.
"""

from __future__ import annotations

import math
import os
import ssl
import time
import urllib.error
import urllib.request
from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

import typer

from hetsched.contracts.errors import InputError

from ..output import note
from .standalone import default_data_dir

EXIT_UNHEALTHY = 1
QUIET_SECONDS = 120.0
READY_FILE = "watch-ready"  # `journal.heartbeat.WATCH_READY`; this command does not load Django
READY_SECONDS = 30.0
RETRY_SECONDS = 2.0


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
    server: Annotated[
        str, typer.Option(metavar="URL", help="Server to check instead of this machine; only with `health web`.")
    ] = "",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Accept any certificate of the server; no credential is sent.")
    ] = False,
    ready: Annotated[
        bool, typer.Option("--ready", help="Check that all clusters were listed; only with `health watch`.")
    ] = False,
    wait: Annotated[int, typer.Option(metavar="SECONDS", help="Wait until the process is healthy.", min=0)] = 0,
) -> None:
    """Check a process of this machine. Exit codes: 0 healthy, 1 unhealthy, with the reason."""
    if server and (process is not Process.WEB or urlsplit(server).scheme not in ("http", "https")):
        hint = "Use health web --server http://HOST:PORT or https://HOST:PORT"
        raise InputError("OptionInvalid", f"{server!r} cannot be checked", place="--server", hint=hint)
    if ready and process is not Process.WATCH:
        raise InputError(
            "OptionInvalid", f"{process.value} has no such check", place="--ready", hint="Use health watch --ready"
        )
    base = server.rstrip("/") or f"http://localhost:{port}"
    deadline = time.monotonic() + wait
    while True:
        trouble = _web(base, component, insecure) if process is Process.WEB else _heartbeat_problem(process)
        if ready and not trouble and _quiet_seconds(READY_FILE) > READY_SECONDS:
            trouble = "watch: not all clusters were listed, as informer or standby"
        if not trouble:
            return
        if time.monotonic() >= deadline:
            note(trouble)
            raise typer.Exit(EXIT_UNHEALTHY)
        time.sleep(RETRY_SECONDS)


def _web(base: str, component: str, insecure: bool) -> str:
    path = f"readyz?component={component}" if component else "livez"
    tls = ssl.create_default_context()
    if insecure:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(f"{base}/{path}", timeout=5, context=tls):  # noqa: S310  (http or https)
            return ""
    except urllib.error.HTTPError as error:
        return f"web responds with {error.code}: {error.read(300).decode(errors='replace')}"
    except OSError as error:
        return f"web does not respond: {error}"


def _quiet_seconds(name: str) -> float:
    """Return the age of a heartbeat file, infinite if there is none."""
    try:
        return time.time() - (default_data_dir() / "pulse" / name).stat().st_mtime
    except OSError:
        return math.inf


def _heartbeat_problem(process: Process) -> str:
    quiet = _quiet_seconds(process.value)
    if quiet < QUIET_SECONDS:
        return ""
    if process is Process.WORKER and not _store_answers():
        note("the message store does not respond; the worker waits for it")
        return ""
    return f"{process.value}: no heartbeat" + (f" for {quiet:.0f} s" if quiet < math.inf else "")


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
