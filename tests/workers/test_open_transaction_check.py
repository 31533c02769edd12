"""The check of invariant I33 in all tests detects an open transaction during a call, and no other one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from django.db import transaction

from tests import calls_outside
from tests.recording_server import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as listening:
        yield listening


def _call(receiver: Receiver) -> None:
    with suppress(OSError), socket.create_connection(("127.0.0.1", receiver.server.server_port), timeout=5):
        pass


@pytest.mark.django_db
def test_call_inside_a_transaction_is_detected(receiver: Receiver) -> None:
    with transaction.atomic():
        _call(receiver)
    assert len(calls_outside.seen) == 1
    calls_outside.seen.clear()  # otherwise this test itself would fail


@pytest.mark.django_db(transaction=True)
def test_call_after_a_transaction_is_allowed(receiver: Receiver) -> None:
    with transaction.atomic():
        pass
    transaction.on_commit(lambda: _call(receiver))
    _call(receiver)
    assert calls_outside.seen == []


@pytest.mark.django_db
def test_transaction_of_the_test_itself_does_not_count(receiver: Receiver) -> None:
    assert transaction.get_connection().in_atomic_block
    _call(receiver)
    assert calls_outside.seen == []
