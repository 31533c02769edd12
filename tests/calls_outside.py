"""Check invariant I33 in every test: a thread with an open transaction does not make outbound calls.

This covers new connections of Python's own sockets, and each call to an API server, which may reuse a connection. The
transactions with which pytest isolates the tests are ignored.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from django.db import connection

from hetsched.adapters.kubernetes.parallel_calls import ParallelCalls
from hetsched.adapters.kubernetes.wire import Wire

seen: list[str] = []


def is_open() -> bool:
    """Return whether this thread has an open transaction that hetsched's code began."""
    return any(not getattr(block, "_from_testcase", False) for block in getattr(connection, "atomic_blocks", ()))


def _watched(act: Callable[..., Any], what: Callable[..., str]) -> Callable[..., Any]:
    @wraps(act)
    def watching(*arguments: Any, **more: Any) -> Any:
        if is_open():
            seen.append(what(*arguments))
        return act(*arguments, **more)

    return watching


@pytest.fixture(scope="session", autouse=True)
def _calls_outside_are_watched() -> Iterator[None]:
    watching = pytest.MonkeyPatch()
    connect = _watched(socket.socket.connect, lambda end, address: f"a connection to {address}")
    watching.setattr(socket.socket, "connect", connect)
    watching.setattr(Wire, "call", _watched(Wire.call, lambda wire, method, path, *_: f"{method} {path}"))
    watching.setattr(ParallelCalls, "advance", _watched(ParallelCalls.advance, lambda *_: "parallel calls"))
    yield
    watching.undo()


@pytest.fixture(autouse=True)
def _no_call_inside_a_transaction() -> Iterator[None]:
    seen.clear()
    yield
    found = list(seen)
    seen.clear()
    assert not found, f"inside a transaction: {found}"
