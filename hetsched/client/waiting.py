"""Wait for a workload.

Any decision ends the wait, even *not now*. With `patient`, only a final state ends the wait. The server delays each
response until the workload reaches the goal. If the server is briefly unavailable after the first response, the client
retries. Exit codes are part of the public contract: 0 reached, 10 not now, 11 never fits, 12 misconfigured, 13 timeout,
14 the run itself failed or was cancelled.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import msgspec

from .documents import Workload
from .errors import ServerUnavailable

if TYPE_CHECKING:
    from .client import Client

_LONGEST_POLL_SECONDS = 30
_PAUSE_SECONDS = 0.5
AWAY_SECONDS = 60.0
Asked = TypeVar("Asked")


class Goal(enum.StrEnum):
    """State of a workload to wait for."""

    PLACED = "placed"
    RUNNING = "running"
    FINISHED = "finished"


class End(enum.StrEnum):
    """Result of a wait."""

    REACHED = "reached"
    NOT_NOW = "not-now"
    NEVER_FITS = "never-fits"
    MISCONFIGURED = "misconfigured"
    TIMED_OUT = "timed-out"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def exit_code(self) -> int:
        return _EXITS[self]


_EXITS = {
    End.REACHED: 0, End.NOT_NOW: 10, End.NEVER_FITS: 11, End.MISCONFIGURED: 12, End.TIMED_OUT: 13, End.FAILED: 14,
    End.CANCELLED: 14,
}  # fmt: skip
_OVER = {end.value: end for end in (End.NOT_NOW, End.NEVER_FITS, End.MISCONFIGURED, End.FAILED, End.CANCELLED)}
_REACHED: dict[Goal, frozenset[str]] = {
    Goal.FINISHED: frozenset({"succeeded"}),
    Goal.RUNNING: frozenset({"running", "succeeded"}),
    Goal.PLACED: frozenset({"placed", "binding", "bound", "running", "succeeded"}),
}


class Waited(msgspec.Struct, frozen=True):
    """Workload at the end of the wait, and the result."""

    workload: Workload
    end: End


def end_of(state: str, goal: Goal, *, patient: bool = False) -> End | None:
    """Return the result for a workload in this state, or None while it may still reach the goal."""
    if state in _REACHED[goal]:
        return End.REACHED
    if patient and state == End.NOT_NOW.value:
        return None
    return _OVER.get(state)


def wait(client: Client, workload_id: str, goal: Goal, timeout_seconds: float, *, patient: bool) -> Waited:
    """Wait until the workload reaches `goal` or fails to, or until the timeout; return it with the result."""
    end = time.monotonic() + timeout_seconds
    # Without `patient`, first wait for the decision, because a rejection ends the wait before the goal.
    awaited = goal if patient else Goal.PLACED
    found: Workload | None = None
    while True:
        began = time.monotonic()
        seconds = max(0, min(_LONGEST_POLL_SECONDS, math.ceil(end - began)))

        def ask(seconds: int = seconds, awaited: Goal = awaited) -> Workload:
            return client.workload(workload_id, wait_seconds=seconds, goal=awaited)

        found = ask() if found is None else poll_until(ask, end)
        over = end_of(found.state, goal, patient=patient)
        if over is not None:
            return Waited(found, over)
        now = time.monotonic()
        if now >= end:
            return Waited(found, End.TIMED_OUT)
        if awaited is goal:
            time.sleep(max(0.0, min(began + _PAUSE_SECONDS, end) - now))
        awaited = goal


def watch(client: Client, workload_id: str, *, every_seconds: float, timeout_seconds: float) -> Iterator[Workload]:
    """Yield the workload, and yield it again after each change until the timeout."""
    path, seen, known = client.workload_path(workload_id), "", False
    end = time.monotonic() + timeout_seconds

    def ask() -> tuple[str, Workload | None]:
        tag, document = client.changed(path, seen)
        return tag, None if document is None else client.read_workload(document)

    while True:
        seen, found = poll_until(ask, end) if known else ask()
        known = True
        if found is not None:
            yield found
        remaining = end - time.monotonic()
        if remaining <= 0:
            return
        time.sleep(min(every_seconds, remaining))


def poll_until(ask: Callable[[], Asked], end: float = math.inf) -> Asked:
    """Call `ask`; while the server is unavailable, retry for up to a minute, but not beyond `end` (monotonic clock)."""
    latest = min(time.monotonic() + AWAY_SECONDS, end)
    while True:
        try:
            return ask()
        except ServerUnavailable as error:
            if not error.passing or time.monotonic() >= latest:
                raise
        time.sleep(_PAUSE_SECONDS)
