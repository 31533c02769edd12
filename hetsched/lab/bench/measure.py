"""Results of a benchmark: repeated values as rows, and a description of the machine.

Baseline and product are measured in one process, alternating (A B A B), so that a busy machine slows down both. A row
contains the median and the 10th and 90th percentiles of its n values (linear interpolation).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hetsched import __version__

Progress = Callable[[int, int], None]
"""Progress callback: the number of finished steps and of all steps."""


class BenchmarkRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Statistics of one case over n repeated values in `unit`; `p95` is set if a goal refers to it."""

    case: str
    unit: str
    median: float
    p10: float
    p90: float
    n: int
    p95: float | None = None


class Checks(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of the checks during a measurement: compared and wrong results, and a digest of all results."""

    compared: int
    different: int
    placements: str = ""


class Scenario(msgspec.Struct, frozen=True):
    """Results of one benchmark, its checks and a description of the machine."""

    scenario: str
    rows: tuple[BenchmarkRow, ...]
    machine: dict[str, Any]
    checks: Checks


def row(case: str, unit: str, values: Sequence[float], *, tail: bool = False) -> BenchmarkRow:
    """Summarize repeated values; `tail` adds the 95th percentile."""
    p10, median, p90, p95 = (round(float(value), 3) for value in np.percentile(values, [10, 50, 90, 95]))
    return BenchmarkRow(case, unit, median, p10, p90, len(values), p95 if tail else None)


def machine() -> dict[str, Any]:
    """Describe those properties of this machine that affect results."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "loadAverage": [round(value, 2) for value in os.getloadavg()],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "hetsched": __version__,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in named if key.strip() in ("model name", "uarch")), "")
