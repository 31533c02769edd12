"""Heartbeat file of a process, for liveness probes.

A check of the process ID does not detect a process that hangs, and a network probe would make liveness depend on the
network. Each process touches its own file in each iteration of its loop; a probe in the same container checks the age
of the file.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from django.conf import settings

WATCH_READY = "watch-ready"  # file of an informer process that has listed its clusters
WATCH_IDLE = "watch-idle"  # file of an informer process for which no pod waits


def beat(name: str) -> None:
    """Touch the heartbeat file of this process; do nothing if the file cannot be written."""
    file = _file(name)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch()
    except OSError:
        return


def clear(name: str) -> None:
    """Remove the heartbeat file of this process, which a process before it may have left."""
    with suppress(OSError):
        _file(name).unlink()


def _file(name: str) -> Path:
    return Path(settings.DATA_DIR) / "pulse" / name
