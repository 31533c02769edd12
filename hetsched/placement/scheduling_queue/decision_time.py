"""Decision time: the time that the scheduler recently spent on the pods of each namespace.

The time of a decision differs by a factor of a thousand between pods, so namespaces with the same number of pods in a
batch can use very different shares of the scheduler's time.
The cluster's row stores the seconds per namespace, which decay exponentially with a time constant of one minute. A
namespace above `FREE_SECONDS` comes after other namespaces at equal priority, ordered by the time it used; see
`engine.framework.policy.by_decision_time`. Values below `NOTED_SECONDS` are not written, so the row stays small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

FREE_SECONDS = 1.0
NOTED_SECONDS = 0.05
MEAN_LIFE_SECONDS = 60.0

StoredSeconds = dict[str, tuple[float, float]]  # namespace -> (decayed seconds, Unix time of this value)


def add_used_seconds(
    stored: Mapping[str, tuple[float, float]], used_seconds: Mapping[str, float], now: float
) -> StoredSeconds:
    """Add the used seconds to the stored seconds, as of the Unix time `now`, and drop values that are almost 0."""
    seconds = {namespace: _decayed(used, at, now) for namespace, (used, at) in stored.items()}
    for namespace, added in used_seconds.items():
        seconds[namespace] = seconds.get(namespace, 0.0) + added
    return {name: (round(used, 3), round(now, 3)) for name, used in seconds.items() if used >= NOTED_SECONDS}


def namespaces_over_share(stored: Mapping[str, tuple[float, float]], now: float) -> dict[str, float]:
    """Return the namespaces above `FREE_SECONDS` with their used seconds; `stored` is the column `decision_time`."""
    decayed = {namespace: _decayed(used, at, now) for namespace, (used, at) in stored.items()}
    return {namespace: seconds for namespace, seconds in decayed.items() if seconds > FREE_SECONDS}


def _decayed(seconds: float, at: float, now: float) -> float:
    return seconds * math.exp(-max(now - at, 0.0) / MEAN_LIFE_SECONDS)
