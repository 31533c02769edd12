"""The informer starts after every kind is listed, and stops when the watch of any kind has ended."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from hetsched.adapters.kubernetes.reflector import Failed, Synced
from hetsched.adapters.kubernetes.resources import DEVICE_TAINT_RULES, NODES, OPTIONAL, PODS
from hetsched.scheduling.informer import Informer
from hetsched.scheduling.leases import following
from hetsched.scheduling.resource_watches import MAX_OPTIONAL_FAILURES

GPUS = OPTIONAL[0]


def an_informer(kinds: Any = (NODES, PODS, GPUS)) -> Informer:
    nothing: Any = None
    lease: Any = SimpleNamespace(cluster_id=-1, epoch=1)
    return Informer(lease, nothing, threading.Event(), kinds=kinds)


@pytest.mark.parametrize(
    ("failures", "begins"),
    [
        ([], False),
        ([404], True),
        ([403], True),
        ([429], False),
        ([0] * (MAX_OPTIONAL_FAILURES - 1), False),
        ([500] * MAX_OPTIONAL_FAILURES, True),
    ],
)
def test_optional_kind_is_waited_for_unless_unavailable(failures: list[int], begins: bool) -> None:
    follower = an_informer()
    for kind in (NODES, PODS):
        follower.watches.states[kind].note(Synced(0))
    for status in failures:
        follower.watches.states[GPUS].note(Failed("no", 1.0, status))
    assert follower.watches.is_synced() is begins


@pytest.mark.parametrize(("status", "begins"), [(500, False), (404, True)])
def test_taint_rules_are_awaited_while_their_list_fails(status: int, begins: bool) -> None:
    """Without the rules, devices that an administrator tainted would be allocated."""
    follower = an_informer((NODES, PODS, DEVICE_TAINT_RULES))
    for kind in (NODES, PODS):
        follower.watches.states[kind].note(Synced(0))
    for _ in range(2 * MAX_OPTIONAL_FAILURES):
        follower.watches.states[DEVICE_TAINT_RULES].note(Failed("no", 1.0, status))
    assert follower.watches.is_synced() is begins


def test_sync_waits_for_required_kinds() -> None:
    follower = an_informer()
    for kind in (PODS, GPUS):
        follower.watches.states[kind].note(Synced(0))
    follower.watches.states[NODES].note(Failed("no", 1.0, 404))
    assert not follower.watches.is_synced()


def test_ended_watch_of_a_kind_stops_the_informer(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = an_informer()
    follower._lease_checked_at -= 1000

    def renew(_: Any) -> bool:
        follower.watches.has_failed = True  # set by the thread of that kind during the database query of this one
        return True

    monkeypatch.setattr(following, "renew", renew)
    follower.iterate()
    assert follower._is_ended()
