"""Compare all cases of a suite, and shrink a case with an unexplained difference to a minimal one."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import yaml

from tests.kube import control_plane

from . import clusters, comparison
from .clusters import Case
from .comparison import Difference
from .device_clusters import draw_devices
from .device_comparison import device_differences
from .kubelet import comparison as kubelet_comparison
from .kubelet import nodes
from .kubelet.admissions import Kubelet
from .program import JsonProgram
from .shrinking import shrink
from .verdicts import KubeScheduler

P = TypeVar("P", bound=JsonProgram)


class Suite(msgspec.Struct, Generic[P], frozen=True):
    """One comparison: the Go program with the code of Kubernetes, the cases by seed, and their differences.

    `cases` is the number of cases of the command.
    """

    program: str
    cases: int
    start: Callable[[Path], P]
    draw: Callable[[int], Case]
    differences: Callable[[Case, P], Iterable[Difference]]


SCHEDULER = Suite(control_plane.SCHEDULER_VERDICTS, 100_000, KubeScheduler, clusters.draw, comparison.differences)
DEVICES = Suite(control_plane.SCHEDULER_VERDICTS, 100_000, KubeScheduler, draw_devices, device_differences)
KUBELET = Suite(control_plane.KUBELET_VERDICTS, 20_000, Kubelet, nodes.draw, kubelet_comparison.differences)


class Summary(msgspec.Struct):
    """Counts of a comparison: cases, judged pods, intended differences by name, and the unexplained ones."""

    cases: int = 0
    pods: int = 0
    intended: Counter[str] = msgspec.field(default_factory=Counter)
    unexplained: list[tuple[Case, Difference]] = []


def compare(suite: Suite[P], program: P, seeds: range, show_every: int = 0) -> Summary:
    """Compare all cases of these seeds."""
    summary = Summary(unexplained=[])
    for seed in seeds:
        case = suite.draw(seed)
        summary.cases += 1
        summary.pods += len(case.pods)
        for difference in suite.differences(case, program):
            if difference.name:
                summary.intended[difference.name] += 1
            else:
                summary.unexplained.append((case, difference))
        if show_every and summary.cases % show_every == 0:
            print(f"{summary.cases:,} cases", file=sys.stderr)
    return summary


def minimal(suite: Suite[P], case: Case, difference: Difference, program: P) -> str:
    """Return a minimal case with an unexplained difference of the same kind, as YAML."""

    def differs(smaller: Case) -> bool:
        try:
            # All differences are computed, because a later one may show that an object is invalid.
            found = list(suite.differences(smaller, program))
            return any(not each.name and each.kind == difference.kind for each in found)
        except Exception:  # an invalid object: the reader of either side rejects it
            return False

    alone = msgspec.structs.replace(case, pods=[difference.pod])
    small = shrink(alone if differs(alone) else case, differs)
    found = [each.text for each in suite.differences(small, program) if not each.name]
    comments = "".join(f"# {text}\n" for text in found)
    return f"# seed {case.seed}\n{comments}{yaml.safe_dump_all([*small.objects, *small.pods], sort_keys=False)}"
