"""Wake-ups of the workers.

Task names are constants here, so no module below the workers imports the workers. A wake-up contains one id: that of
the cluster, or of the host for a callback. It is sent after the commit, once per transaction and task. A lost wake-up
only delays the work, because a periodic task finds the work too. A process that does the work itself (`route_locally`)
needs no message.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import structlog
from celery import current_app
from django.db import connection, transaction

SCHEDULE = "workers.schedule.run"
BIND = "workers.bind.run"
SWEEP = "workers.sweep.run"
DEMO = "workers.demo.tick"
CALLBACK = "workers.callback.run"
REPORT = "workers.report.run"
CREATE = "workers.create.run"
EVICT = "workers.evict.run"
SHADOW = "workers.shadow.run"
IMAGES = "workers.images.run"
COLLECT = "workers.collect.run"
REPLAY = "workers.replay.run"
REBALANCE = "workers.rebalance.run"

_QUEUES = {SCHEDULE: "schedule", REPLAY: "preview"}
TOGETHER_SECONDS = 0.05
log = structlog.get_logger(__name__)
_here: dict[tuple[int | str, str], Callable[[], None]] = {}


class _Wake(msgspec.Struct, frozen=True):
    """A wake-up to send after the commit; equal wake-ups of a transaction are sent once."""

    row_id: int | str
    task: str

    def __call__(self) -> None:
        act = _here.get((self.row_id, self.task))
        if act is not None:
            act()
        elif _background:
            _background[0].put(self)
        else:
            send(self.row_id, self.task)


_background: list[queue.SimpleQueue[_Wake]] = []  # has at most one element: the input queue of the sender thread


def send_in_background() -> None:
    """Send the wake-ups of this process from a daemon thread, so that no request and no scheduling iteration waits.

    The first wake-up is sent immediately; equal wake-ups within `TOGETHER_SECONDS` are merged into one.
    """
    waiting: queue.SimpleQueue[_Wake] = queue.SimpleQueue()
    _background.append(waiting)
    threading.Thread(target=_send_all, args=(waiting,), name="wake-ups", daemon=True).start()


def _send_all(waiting: queue.SimpleQueue[_Wake]) -> None:
    with suppress(Exception):  # the first wake-up reports a failure
        current_app.connection_for_write().get_transport_cls()  # import the client of the broker before it is needed
    while True:
        some = {waiting.get()}
        while not waiting.empty():
            some.add(waiting.get())
        for wake_up in some:
            send(wake_up.row_id, wake_up.task)
        time.sleep(TOGETHER_SECONDS)


def send(row_id: int | str, task: str, *, in_seconds: float = 0.0) -> None:
    """Send a wake-up to the workers, with an optional delay."""
    try:
        queue = _QUEUES.get(task, "io")
        # Ignore the result: it is not used, and the client would wait for a result store that may be down.
        later: Any = {"countdown": in_seconds} if in_seconds else {}
        # Do not retry: a periodic task repeats lost wake-ups, and a retry would delay the sender.
        current_app.signature(task, args=[row_id]).apply_async(queue=queue, ignore_result=True, retry=False, **later)
    except Exception as error:  # the work is committed, so a broker failure must not raise an error here
        log.warning("wake-up not sent", task=task, id=row_id, error=repr(error))


def wake(row_id: int | str, task: str = SCHEDULE) -> None:
    """Request a run of a task (scheduling by default) for this row once the transaction is committed."""
    asked = _Wake(row_id, task)
    if not any(callback == asked for _, callback, *_ in connection.run_on_commit):
        transaction.on_commit(asked)


def route_locally(row_id: int | str, task: str, act: Callable[[], None]) -> None:
    """For this row and task, call `act` in place of sending a wake-up from this process, until `route_to_workers`."""
    _here[row_id, task] = act


def route_to_workers(row_id: int | str, task: str) -> None:
    """Send the wake-ups of this row and task to the workers again."""
    _here.pop((row_id, task), None)
