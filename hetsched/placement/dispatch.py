"""Wake the workers.

Rule: task names are constants here, so that nothing below the workers imports them. A wake-up carries one id only, of
the cluster or, for a callback, of the host; it goes out after the commit, once per transaction and task, and is a
hint: when it is lost, a sweep finds the work. A process that does the work itself (`here`) needs no message.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
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
TELL = "workers.tell.run"
CREATE = "workers.create.run"
EVICT = "workers.evict.run"
SHADOW = "workers.shadow.run"
IMAGES = "workers.images.run"
COLLECT = "workers.collect.run"
REPLAY = "workers.replay.run"
REBALANCE = "workers.rebalance.run"

TOGETHER_SECONDS = 0.05
log = structlog.get_logger(__name__)
_here: dict[tuple[int | str, str], Callable[[], None]] = {}


class _Wake(msgspec.Struct, frozen=True):
    """One wake-up, waiting for the commit; equal ones of a transaction go out once."""

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


_background: list[queue.SimpleQueue[_Wake]] = []  # at most one: where a thread of this process takes what it sends


def keep_in_background() -> None:
    """Send the wake-ups of this process from a thread of its own, until the process ends: no request waits for them.

    Equal ones of `TOGETHER_SECONDS` go out once; the first goes out at once.
    """
    waiting: queue.SimpleQueue[_Wake] = queue.SimpleQueue()
    _background.append(waiting)
    threading.Thread(target=_send_all, args=(waiting,), name="wake-ups", daemon=True).start()


def _send_all(waiting: queue.SimpleQueue[_Wake]) -> None:
    while True:
        some = {waiting.get()}
        while not waiting.empty():
            some.add(waiting.get())
        for wake_up in some:
            send(wake_up.row_id, wake_up.task)
        time.sleep(TOGETHER_SECONDS)


def send(row_id: int | str, task: str, *, in_seconds: float = 0.0) -> None:
    """Send a wake-up to the workers, to be heard now or a little later."""
    try:
        queue = "schedule" if task == SCHEDULE else "io"
        # Nobody reads a result, and preparing to read one would wait for a store that may be down.
        later: Any = {"countdown": in_seconds} if in_seconds else {}
        # Tried once: the sweep is what tries again, and whoever sends this has more to do.
        current_app.signature(task, args=[row_id]).apply_async(queue=queue, ignore_result=True, retry=False, **later)
    except Exception as error:  # a broker that is down, full or a replica by now must not undo what is committed
        log.warning("wake-up not sent", task=task, id=row_id, error=repr(error))


def wake(row_id: int | str, task: str = SCHEDULE) -> None:
    """Ask for a scheduling (or another) round of this cluster once the transaction is committed."""
    asked = _Wake(row_id, task)
    if not any(callback == asked for _, callback, *_ in connection.run_on_commit):
        transaction.on_commit(asked)


def here(row_id: int | str, task: str, act: Callable[[], None]) -> None:
    """Have wake-ups that this process would send call `act` instead, until `elsewhere`."""
    _here[row_id, task] = act


def elsewhere(row_id: int | str, task: str) -> None:
    """Send such wake-ups to the workers again."""
    _here.pop((row_id, task), None)
