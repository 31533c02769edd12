"""What plans and previews ask for, and the figures that plans go by.

Units: figures are ratios 0-1, except `pendingPods`, a number of pods; minutes are whole.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

Metric = Literal["gpuAllocation", "cpuUtilization", "memoryUtilization", "balance", "pendingPods"]
Version = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
MOST_DECISIONS = 10_000


class Once(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Activate a version at a time; one that is missed by more than `late_minutes` is skipped."""

    version: Version
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    late_minutes: Annotated[int, msgspec.Meta(ge=0, le=10_080)] = 60


class Condition(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Above `above` for so many minutes: `above_version`; for as many below `below`, which is less: `below_version`."""

    cluster: str
    metric: Metric
    above: float
    above_version: Version
    below: float
    below_version: Version
    minutes: Annotated[int, msgspec.Meta(ge=1, le=1440)] = 10


class Measured(msgspec.Struct, frozen=True, rename="camel"):
    """The figures of a cluster; null where it has no such capacity."""

    gpu_allocation: float | None
    cpu_utilization: float | None
    memory_utilization: float | None
    balance: float | None
    pending_pods: float | None

    def of(self, metric: Metric) -> float | None:
        """Return one figure by its name."""
        figures: dict[str, float | None] = msgspec.to_builtins(self)
        return figures[metric]


class Asked(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How a version is to be tried on what was decided.

    `scope` own: pods of other policies are decided by their own; all: every pod by this one. `baseline` recorded: the
    versions that decided then, in place of the active one.
    """

    last: Annotated[int, msgspec.Meta(ge=1, le=MOST_DECISIONS)] = 1000
    scope: Literal["own", "all"] = "own"
    baseline: Literal["active", "recorded"] = "active"
