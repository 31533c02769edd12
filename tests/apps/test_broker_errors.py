"""Committed rows stay after any error of the broker, and the next wake-up is still sent."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest
from kombu.exceptions import OperationalError
from redis.exceptions import ReadOnlyError, ResponseError

from hetsched.placement import dispatch


class Broker:
    """Reject the first wake-up, and accept the others."""

    def __init__(self, refusal: Exception) -> None:
        self.refusals = [refusal]
        self.took: list[Any] = []
        self.taken = threading.Event()

    def signature(self, task: str, args: list[Any]) -> Any:
        broker = self

        class Signature:
            def apply_async(self, **options: Any) -> None:
                if broker.refusals:
                    raise broker.refusals.pop()
                broker.took.append((task, args))
                broker.taken.set()

        return Signature()


# A store that is full, or that became a replica, responds with an error; one that is down does not respond.
REFUSALS = [OperationalError("down"), ResponseError("OOM command not allowed"), ReadOnlyError("You can't write")]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: type(refusal).__name__)
def test_next_wake_up_is_sent(monkeypatch: pytest.MonkeyPatch, refusal: Exception) -> None:
    broker = Broker(refusal)
    monkeypatch.setattr(dispatch, "current_app", broker)
    waiting: queue.SimpleQueue[dispatch._Wake] = queue.SimpleQueue()
    threading.Thread(target=dispatch._send_all, args=(waiting,), daemon=True).start()
    waiting.put(dispatch._Wake(1, dispatch.SCHEDULE))
    while broker.refusals:
        pass
    waiting.put(dispatch._Wake(2, dispatch.BIND))
    assert broker.taken.wait(5)
    assert broker.took == [(dispatch.BIND, [2])]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: type(refusal).__name__)
def test_sender_gets_no_error(monkeypatch: pytest.MonkeyPatch, refusal: Exception) -> None:
    monkeypatch.setattr(dispatch, "current_app", Broker(refusal))
    dispatch.send(1, dispatch.SCHEDULE)
