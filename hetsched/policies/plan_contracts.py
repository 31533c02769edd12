"""Types of plans and previews, and the metrics that plans use.

Units: metrics are ratios 0-1, except `pendingPods`, a number of pods; minutes are whole.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from django.utils.translation import gettext_lazy as _

from hetsched.contracts.documents import to_plain

Metric = Literal["gpuAllocation", "cpuUtilization", "memoryUtilization", "balance", "pendingPods"]
METRIC_NAMES = {
    "gpuAllocation": _("GPU allocation (0–1)"),
    "cpuUtilization": _("CPU requested (0–1)"),
    "memoryUtilization": _("Memory requested (0–1)"),
    "balance": _("Balance (0–1)"),
    "pendingPods": _("Pending pods (number)"),
}
Version = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
MOST_DECISIONS = 10_000


class Once(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Activate a version at a set time, or skip the activation if it is more than `late_minutes` late."""

    version: Version
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    late_minutes: Annotated[int, msgspec.Meta(ge=0, le=10_080)] = 60


class Condition(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Activate `above_version` once the metric has been above `above` for `minutes`.

    Activate `below_version` once the metric has been below `below` for `minutes`. `below` is less than `above`.
    """

    cluster: str
    metric: Metric
    above: float
    above_version: Version
    below: float
    below_version: Version
    minutes: Annotated[int, msgspec.Meta(ge=1, le=1440)] = 10


class Measured(msgspec.Struct, frozen=True, rename="camel"):
    """The metrics of a cluster; a metric is null if the cluster does not have that resource."""

    gpu_allocation: float | None
    cpu_utilization: float | None
    memory_utilization: float | None
    balance: float | None
    pending_pods: float | None

    def of(self, metric: Metric) -> float | None:
        """Return one metric by its name."""
        figures: dict[str, float | None] = to_plain(self)
        return figures[metric]


class PreviewParameters(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Parameters of a preview of a version on recorded decisions.

    With `scope` "own", pods of other policies are scheduled with their own policy; with "all", every pod is scheduled
    with this policy. The version is compared with the active version or, with `baseline` "recorded", with the versions
    that made the decisions.
    """

    last: Annotated[int, msgspec.Meta(ge=1, le=MOST_DECISIONS)] = 1000
    scope: Literal["own", "all"] = "own"
    baseline: Literal["active", "recorded"] = "active"
