"""Wait for a workload to get somewhere, for as many requests as there are.

Problem: a poll per waiting request multiplies queries; a message may be lost.
Rule: one thread asks for all waited-for workloads in one query, 20 times a second, as long as anybody waits; a request
is woken when its workload is in one of the states it waits for. A waiting request holds no database connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

import msgspec
import structlog
from django.db import connection

from hetsched.placement.models import Workload

TICK_SECONDS = 0.05
MOST_WAITING = 256
log = structlog.get_logger(__name__)


class _Waiter(msgspec.Struct, eq=False):
    workload_id: str
    states: frozenset[str]
    woken: threading.Event


def states_of(workload_ids: set[str]) -> dict[str, str]:
    """Read the states of workloads; one that is gone is left out."""
    return dict(Workload.objects.filter(pk__in=workload_ids).values_list("id", "state"))


class Watch:
    """The waiters of one process and the thread that serves them."""

    def __init__(self, read: Callable[[set[str]], dict[str, str]] = states_of) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._waiters: set[_Waiter] = set()
        self._thread: threading.Thread | None = None

    def wait(self, workload_id: str, states: Iterable[str], seconds: float) -> None:
        """Return when the workload is in one of these states, or after `seconds`; at once when too many wait."""
        waiter = _Waiter(workload_id, frozenset(states), threading.Event())
        with self._lock:
            if len(self._waiters) >= MOST_WAITING:
                return
            self._waiters.add(waiter)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="workload-watch", daemon=True)
                self._thread.start()
        if not connection.in_atomic_block:
            connection.close()
        try:
            waiter.woken.wait(seconds)
        finally:
            with self._lock:
                self._waiters.discard(waiter)

    def _serve(self) -> None:
        while True:
            with self._lock:
                waiters = list(self._waiters)
                if not waiters:
                    self._thread = None
                    break
            try:
                self._wake(waiters)
            except Exception as error:  # the waiting requests ask for themselves, and tell what is wrong
                log.warning("workload watch failed", error=repr(error))
                for waiter in waiters:
                    waiter.woken.set()
            time.sleep(TICK_SECONDS)
        connection.close()

    def _wake(self, waiters: list[_Waiter]) -> None:
        states = self._read({waiter.workload_id for waiter in waiters})
        for waiter in waiters:
            state = states.get(waiter.workload_id)
            if state is None or state in waiter.states:
                waiter.woken.set()


watch = Watch()
