"""Wait for workloads to reach a state, for any number of requests.

If each waiting request polled the database, there would be too many queries, and notifications may be lost. So one
thread reads all awaited workloads with one query, 20 times a second while requests wait, and wakes each request whose
workload is in an awaited state. A waiting request does not hold a database connection.
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
    """Return the state of each workload by its id, without deleted workloads."""
    return dict(Workload.objects.filter(pk__in=workload_ids).values_list("id", "state"))


class Watch:
    """Registry of the waiting requests of one process, with the thread that wakes them."""

    def __init__(self, read: Callable[[set[str]], dict[str, str]] = states_of) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._waiters: set[_Waiter] = set()
        self._thread: threading.Thread | None = None

    def wait(self, workload_id: str, states: Iterable[str], seconds: float) -> None:
        """Wait until the workload is in one of these states or `seconds` have passed. Return immediately if too many
        requests wait.
        """
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
            except Exception as error:  # wake all requests: each queries the database itself and reports the error
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
