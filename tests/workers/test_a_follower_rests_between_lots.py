"""Pods that keep coming are decided some at a time: after some that waited the follower rests before it takes more."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from hetsched.adapters.kube.reflector import Seen
from hetsched.adapters.kube.resources import PODS
from workers import follower as followers

STEPS = [0.010, 0.100]  # seconds that the first and the second lot take


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class _Live:
    passes = False

    def __init__(self, clock: _Clock) -> None:
        self.clock, self.left = clock, list(STEPS)

    def is_only_echo(self, event: Any) -> bool:
        return False

    def turn(self) -> bool:
        self.clock.now += self.left.pop(0) if self.left else 0.0
        return False


def _follower(monkeypatch: pytest.MonkeyPatch) -> tuple[followers.Follower, _Clock]:
    clock = _Clock()
    monkeypatch.setattr(followers, "time", clock)
    live: Any = _Live(clock)
    lease: Any = SimpleNamespace(cluster_id=-1, epoch=1)
    api: Any = None
    monkeypatch.setattr(followers.following, "renew", lambda lease: True)
    follower = followers.Follower(lease, api, threading.Event(), live=live)
    for name in ("_apply", "_apply_policies", "_tell"):
        monkeypatch.setattr(follower, name, lambda: None)
    monkeypatch.setattr(follower, "_fresh", lambda: True)
    monkeypatch.setattr(follower, "_begun", True)
    return follower, clock


def _come(follower: followers.Follower, name: str) -> None:
    body = b'{"metadata":{"name":"%s","namespace":"web","uid":"u"},"spec":{"containers":[]}}' % name.encode()
    follower._news.put((PODS, Seen(f"web/{name}", body)))


def test_it_rests_half_as_long_as_those_before_took_and_never_long(monkeypatch: pytest.MonkeyPatch) -> None:
    follower, clock = _follower(monkeypatch)
    try:
        for name in ("first", "second", "third"):
            _come(follower, name)
            follower.turn()
    finally:
        followers.turned.pop(-1, None)
    # Nobody came before the first; 10 ms of work are followed by 5 ms; of 100 ms half would be 50, 25 are the most.
    assert clock.slept == pytest.approx([0.0, 0.005, 0.025])


def test_who_comes_after_the_rest_is_over_is_taken_in_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    follower, clock = _follower(monkeypatch)
    try:
        _come(follower, "first")
        follower.turn()
        clock.now += 1.0
        _come(follower, "second")
        follower.turn()
    finally:
        followers.turned.pop(-1, None)
    assert clock.slept == [0.0, 0.0]
