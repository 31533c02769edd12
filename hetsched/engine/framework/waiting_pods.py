"""The permit room: placements that are booked but held until someone allows them.

Rule: a held placement keeps its booking. It leaves the room allowed (every plugin that held it said so), rejected, or
because its time is over. What is rejected while the scheduler is at work is undone by it at once; what a caller
rejects or lets expire here is the caller's to undo.
Invariant: a key is in the room at most once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from .status import Refusal, Wait

if TYPE_CHECKING:
    from hetsched.engine.cluster.state import ClusterState

    from .cycle import Outcome


class Held:
    """One held placement, and what each plugin that holds it waits for (caller's clock, seconds)."""

    __slots__ = ("holders", "outcome", "waits")

    def __init__(self, outcome: Outcome, waits: dict[str, Wait]) -> None:
        self.outcome = outcome
        self.waits = waits
        self.holders = set(waits)

    @property
    def until_seconds(self) -> float:
        return min(wait.until_seconds for wait in self.waits.values())

    @property
    def late(self) -> tuple[str, Refusal] | None:
        """Return what the plugin says whose patience ends first, with its name."""
        name, wait = min(self.waits.items(), key=lambda item: item[1].until_seconds)
        return None if wait.late is None else (name, wait.late)


class PermitRoom:
    """All held placements of one scheduler, in the order they came; they are booked on `state`."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.held: dict[str, Held] = {}
        self.now_seconds = 0.0
        self.to_undo: deque[Outcome] = deque()
        self._allowed: list[Outcome] = []
        self._rejected: list[Outcome] = []

    def hold(self, outcome: Outcome, waits: dict[str, Wait]) -> None:
        self.held[outcome.pod.key] = Held(outcome, waits)

    def allow(self, key: str, plugin: str) -> None:
        """Say that `plugin` no longer holds `key`."""
        held = self.held.get(key)
        if held is not None:
            held.holders.discard(plugin)
            if not held.holders:
                self.leave(key)
                held.outcome.held = False
                self._allowed.append(held.outcome)

    def leave(self, key: str) -> None:
        """Take `key` out without a verdict, because its placement is undone; unknown keys are ignored."""
        self.held.pop(key, None)

    def reject(self, key: str, refusal: tuple[str, Refusal] | None = None) -> None:
        """Send `key` away, as this plugin refuses it; unknown keys are ignored."""
        held = self.held.pop(key, None)
        if held is not None:
            held.outcome.refusal = refusal
            self._rejected.append(held.outcome)
            self.to_undo.append(held.outcome)

    def expire(self, now_seconds: float) -> None:
        """Reject everything whose time is over."""
        self.now_seconds = now_seconds
        for key in [key for key, held in self.held.items() if held.until_seconds <= now_seconds]:
            self.reject(key, self.held[key].late)

    def drain(self) -> tuple[list[Outcome], list[Outcome]]:
        """Return (allowed, rejected) placements since the last call."""
        allowed, rejected = self._allowed, self._rejected
        self._allowed, self._rejected = [], []
        return allowed, rejected
