"""When a figure that goes up and down is to change which version decides.

Rule: above the upper bound for the whole time: one side; below the lower bound for as long: the other; in between
nothing changes. A side is entered once: whoever overrules it is not overruled again before the figure has been on the
other side. Looks that are further apart than `GAP` say nothing of the time between, so the time starts anew.
Invariant: the same figures at the same times give the same switches, live or on a recorded curve.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from .plan_contracts import Condition

GAP = timedelta(minutes=5)
Way = Literal["above", "below", ""]


class Watch(msgspec.Struct, frozen=True):
    """What is known of a figure so far: the side that was entered, and since when it is beyond a bound."""

    side: Way = ""
    above_since: datetime | None = None
    below_since: datetime | None = None
    looked_at: datetime | None = None


class Switch(msgspec.Struct, frozen=True):
    """One change: at which figure, and to which version."""

    at: datetime
    value: float
    version: int


def look(condition: Condition, watch: Watch, at: datetime, value: float) -> tuple[Watch, Way]:
    """Take in a figure; return what is known now, and the side that is to be entered, if one is.

    Whoever enters it says so (`entered`); until then it is to be entered.
    """
    fresh = watch.looked_at is not None and at - watch.looked_at <= GAP
    above = (watch.above_since if fresh else None) or at if value > condition.above else None
    below = (watch.below_since if fresh else None) or at if value < condition.below else None
    known = Watch(watch.side, above, below, at)
    long_enough = timedelta(minutes=condition.minutes)
    if above is not None and watch.side != "above" and at - above >= long_enough:
        return known, "above"
    if below is not None and watch.side != "below" and at - below >= long_enough:
        return known, "below"
    return known, ""


def entered(watch: Watch, side: Way) -> Watch:
    """Return what is known once a side is entered."""
    return msgspec.structs.replace(watch, side=side)


def version_of(condition: Condition, side: Way) -> int:
    """Return the version that decides on a side."""
    return condition.above_version if side == "above" else condition.below_version


def switches(condition: Condition, curve: Iterable[tuple[datetime, float]]) -> list[Switch]:
    """Return what a condition would have changed on a recorded curve."""
    watch, found = Watch(), []
    for at, value in curve:
        watch, side = look(condition, watch, at, value)
        if side:
            watch = entered(watch, side)
            found.append(Switch(at, value, version_of(condition, side)))
    return found
