"""Hysteresis: when a fluctuating metric switches the active version.

A condition enters the *above* side after the metric has been above the upper bound for the whole period, and the
*below* side after it has been below the lower bound for the whole period. Between the bounds nothing changes. A side is
not entered again until the other side was entered, so a manual activation is not reverted before that. If two samples
are more than `GAP` apart, the values between them are unknown, and the period restarts.
Invariant: the same values at the same times cause the same switches, live or on a recorded curve.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from .plan_contracts import Condition

GAP = timedelta(minutes=5)
Side = Literal["above", "below", ""]


class HysteresisState(msgspec.Struct, frozen=True):
    """State of the evaluation: the side entered last, and the time since which the metric has been beyond a bound."""

    side: Side = ""
    above_since: datetime | None = None
    below_since: datetime | None = None
    looked_at: datetime | None = None


class Switch(msgspec.Struct, frozen=True):
    """One switch: its time, the metric's value, and the activated version."""

    at: datetime
    value: float
    version: int


def process_sample(
    condition: Condition, watch: HysteresisState, at: datetime, value: float
) -> tuple[HysteresisState, Side]:
    """Process a sample; return the new state and the side to enter, if any.

    The caller confirms the switch with `enter_side`; until then, every call returns the same side.
    """
    fresh = watch.looked_at is not None and at - watch.looked_at <= GAP
    above = (watch.above_since if fresh else None) or at if value > condition.above else None
    below = (watch.below_since if fresh else None) or at if value < condition.below else None
    known = HysteresisState(watch.side, above, below, at)
    long_enough = timedelta(minutes=condition.minutes)
    if above is not None and watch.side != "above" and at - above >= long_enough:
        return known, "above"
    if below is not None and watch.side != "below" and at - below >= long_enough:
        return known, "below"
    return known, ""


def enter_side(watch: HysteresisState, side: Side) -> HysteresisState:
    """Return the state after a side is entered."""
    return msgspec.structs.replace(watch, side=side)


def version_of(condition: Condition, side: Side) -> int:
    """Return the version that is activated when a side is entered."""
    return condition.above_version if side == "above" else condition.below_version


def past_switches(condition: Condition, curve: Iterable[tuple[datetime, float]]) -> list[Switch]:
    """Return the switches that a condition would have caused on a recorded curve."""
    watch, found = HysteresisState(), []
    for at, value in curve:
        watch, side = process_sample(condition, watch, at, value)
        if side:
            watch = enter_side(watch, side)
            found.append(Switch(at, value, version_of(condition, side)))
    return found
