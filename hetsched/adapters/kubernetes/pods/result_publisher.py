"""Publish the results of many pods with calls that one thread has in flight (`ParallelCalls`).

A bound pod needs one call, the creation of its event. A pod without a node needs two: the patch of its condition and,
when it has succeeded, the creation of its event. Results by failure of a call:
    400, 403, 404, 409, 422     published: a retry would not help, because the pod is deleted, the write is not allowed,
                                or the event exists since an earlier attempt without a response
    request not processed       the call is sent again, on another connection
    any other failure           not published; the caller publishes the result again later
If no connection can be opened, or the program for credentials fails, and no call is in flight, the remaining results
are not published. A call waits for its response at most `READ_SECONDS`, and no pod is started after `START_SECONDS`, so
the time of `publish` is bounded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Self

from hetsched.contracts.times import rfc3339

from ..api import NOT_PROCESSED, Api, ApiFailure
from ..parallel_calls import Done, ParallelCalls
from .pod_events import PodCall, PodResult, condition_call, event_call

# A connection that must be opened costs as much processor time as the events of several pods. An API server processes
# the requests of one connection one after the other, and etcd commits parallel writes together, which costs less.
PODS_PER_CONNECTION = 6
START_SECONDS = 30.0
_WAIT_SECONDS = 0.25
_FINAL = frozenset({400, 403, 404, 409, 422})


class ResultPublisher:
    """Publishes results on pods of one cluster, at most `at_once` at a time, and then returns its connections.

    `instance` is the name of this process. `ends` is True if no further pods are to be started.
    """

    def __init__(self, api: Api, results: Sequence[PodResult], *, instance: str, at_once: int) -> None:
        self.ends = False
        self._api = api
        self._instance = instance
        self._at_once = at_once
        self._refill_at = at_once // 2
        self._calls = ParallelCalls(api, min(at_once, len(results) // PODS_PER_CONNECTION + 1))
        self._may_open, self._is_unreachable = True, False
        self._waiting = deque(results)
        self._unsent: deque[tuple[PodResult, bool]] = deque()  # started pods, and whether the next call is the event
        self._started = 0  # pods without a result
        self._published: list[tuple[PodResult, bool]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.release()

    @property
    def is_done(self) -> bool:
        """Return True if each pod has a result."""
        return not (self._waiting or self._started or self._published)

    def publish(self) -> Iterator[list[tuple[PodResult, bool]]]:
        """Yield the results of the calls that ended, each with False if it must be published again later.

        A list follows within `_WAIT_SECONDS`, even if it is empty, so that the caller can renew its lease. It takes
        longer if a connection must be opened, or a program for credentials runs.
        """
        until = time.monotonic() + START_SECONDS
        while not self._is_unreachable:
            # Requests are added for several pods at a time, which share a write and a read on each connection.
            if self._unsent or self._started <= self._refill_at:
                self._fill(may_start=not self.ends and time.monotonic() < until)
            if self._calls.in_flight:
                self._calls.advance(_WAIT_SECONDS)
            elif not (self._published or self._unsent or self._is_unreachable):
                return
            ended, self._published = self._published, []
            yield ended
        unpublished = [*(result for result, _ in self._unsent), *self._waiting]
        self._started -= len(self._unsent)
        self._unsent.clear()
        self._waiting.clear()
        yield [*self._published, *((result, False) for result in unpublished)]
        self._published = []

    def _fill(self, *, may_start: bool) -> None:
        """Start the next calls of started pods, and then the first calls of further pods."""
        now = rfc3339(datetime.now(UTC))
        while self._unsent and self._send(*self._unsent[0], now):
            self._unsent.popleft()
        may_start = may_start and not self._unsent
        while may_start and self._waiting and self._started < self._at_once:
            result = self._waiting[0]
            if not self._send(result, bool(result.node), now):
                return
            self._waiting.popleft()
            self._started += 1

    def _send(self, result: PodResult, is_event: bool, now: str) -> bool:
        """Make the next call of a pod; return False if it must wait for a connection."""
        call = event_call(result, now, self._instance) if is_event else condition_call(result, now)
        done = partial(self._done, result, is_event)
        try:
            if self._start(call, done):
                return True
            if not self._has_opened():
                return False
            if not self._start(call, done):  # for example because another thread renews the credential
                self._api.send(call.method, call.path, call.body, content=call.content)
                done(None)
        except ApiFailure as failure:
            done(failure)
        return True

    def _start(self, call: PodCall, done: Done) -> bool:
        return self._calls.start(call.path, call.body, done, method=call.method, content=call.content)

    def _has_opened(self) -> bool:
        """Open a connection; return False if the calls in flight must end before."""
        if self._calls.in_flight and not (self._may_open and self._calls.has_room):
            return False
        try:
            self._calls.open()
        except ApiFailure:
            self._may_open, self._is_unreachable = False, not self._calls.in_flight
            return False
        return True

    def _done(self, result: PodResult, is_event: bool, failure: ApiFailure | None) -> None:
        """Record the end of a call."""
        if failure is not None and failure.reason == NOT_PROCESSED:
            self._unsent.append((result, is_event))
        elif failure is None and not is_event:
            self._unsent.append((result, True))
        else:
            self._started -= 1
            self._published.append((result, failure is None or failure.status in _FINAL))
