"""Waiting-pods map: placements that are assumed but wait for a permit.

A waiting placement keeps its reservation until every plugin that makes it wait allows it, a plugin rejects it, or it
times out. The scheduler immediately undoes placements that are rejected during a cycle; the caller undoes the
placements that it rejects or lets expire.
Invariant: a key occurs at most once.
"""

from __future__ import annotations

from collections import deque

from hetsched.engine.cluster.state import ClusterState

from .outcome import Outcome
from .status import Refusal, Wait


class WaitingPod:
    """One waiting placement, and the Wait of each plugin that makes it wait (caller's clock, seconds)."""

    __slots__ = ("holders", "outcome", "waits")

    def __init__(self, outcome: Outcome, waits: dict[str, Wait]) -> None:
        self.outcome = outcome
        self.waits = waits
        self.holders = set(waits)

    @property
    def until_seconds(self) -> float:
        return min(wait.until_seconds for wait in self.waits.values())

    @property
    def timeout_refusal(self) -> tuple[str, Refusal] | None:
        """Return the plugin whose Wait times out first, and its `late` refusal; None if that Wait has no `late`."""
        name, wait = min(self.waits.items(), key=lambda item: item[1].until_seconds)
        return None if wait.late is None else (name, wait.late)


class WaitingPods:
    """All waiting placements of one scheduler in order of arrival; the pods are assumed on `state`."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.pods: dict[str, WaitingPod] = {}
        self.now_seconds = 0.0
        self.to_undo: deque[Outcome] = deque()
        self._allowed: list[Outcome] = []
        self._rejected: list[Outcome] = []

    def add(self, outcome: Outcome, waits: dict[str, Wait]) -> None:
        self.pods[outcome.pod.key] = WaitingPod(outcome, waits)

    def allow(self, key: str, plugin: str) -> None:
        """End the Wait of `plugin` for the pod `key`; the pod is allowed once no other plugin makes it wait."""
        waiting_pod = self.pods.get(key)
        if waiting_pod is not None:
            waiting_pod.holders.discard(plugin)
            if not waiting_pod.holders:
                self.remove(key)
                waiting_pod.outcome.is_waiting = False
                self._allowed.append(waiting_pod.outcome)

    def remove(self, key: str) -> None:
        """Remove `key` without a verdict because its placement is undone; unknown keys are ignored."""
        self.pods.pop(key, None)

    def reject(self, key: str, refusal: tuple[str, Refusal] | None = None) -> None:
        """Reject `key` with `refusal`, a pair (plugin name, refusal); unknown keys are ignored."""
        waiting_pod = self.pods.pop(key, None)
        if waiting_pod is not None:
            waiting_pod.outcome.refusal = refusal
            self._rejected.append(waiting_pod.outcome)
            self.to_undo.append(waiting_pod.outcome)

    def expire(self, now_seconds: float) -> None:
        """Reject all placements whose timeout has passed at `now_seconds`, and store this time."""
        self.now_seconds = now_seconds
        for key in [key for key, waiting_pod in self.pods.items() if waiting_pod.until_seconds <= now_seconds]:
            self.reject(key, self.pods[key].timeout_refusal)

    def drain(self) -> tuple[list[Outcome], list[Outcome]]:
        """Return the placements allowed and those rejected since the last call."""
        allowed, rejected = self._allowed, self._rejected
        self._allowed, self._rejected = [], []
        return allowed, rejected
