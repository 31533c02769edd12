"""The permit room: placements that are booked but held until someone allows them.

Rule: a held placement keeps its booking. It leaves the room allowed (every plugin that held it said so), rejected, or
because its time is over; rejected and expired ones must be undone by the caller.
Invariant: a key is in the room at most once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cycle import Outcome


class Held:
    """One held placement, the plugins that hold it, and when its patience ends (caller's clock, seconds)."""

    __slots__ = ("holders", "outcome", "until_seconds")

    def __init__(self, outcome: Outcome, holders: set[str], until_seconds: float) -> None:
        self.outcome = outcome
        self.holders = holders
        self.until_seconds = until_seconds


class PermitRoom:
    """All held placements of one scheduler, in the order they came."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self.now_seconds = 0.0
        self._allowed: list[Outcome] = []
        self._rejected: list[Outcome] = []

    def hold(self, outcome: Outcome, holders: set[str], until_seconds: float) -> None:
        self.held[outcome.pod.key] = Held(outcome, holders, until_seconds)

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

    def reject(self, key: str) -> None:
        """Send `key` away; unknown keys are ignored."""
        held = self.held.pop(key, None)
        if held is not None:
            self._rejected.append(held.outcome)

    def expire(self, now_seconds: float) -> None:
        """Reject everything whose time is over."""
        self.now_seconds = now_seconds
        for key in [key for key, held in self.held.items() if held.until_seconds <= now_seconds]:
            self.reject(key)

    def drain(self) -> tuple[list[Outcome], list[Outcome]]:
        """Return (allowed, rejected) placements since the last call."""
        allowed, rejected = self._allowed, self._rejected
        self._allowed, self._rejected = [], []
        return allowed, rejected
