"""Facts of a node that its kubelet contradicted.

Problem: a node that says one thing and does another takes pods that it cannot run, over and over.
Rule: a kubelet that does not run a pod puts the facts in doubt that let the pod come. A doubt changes no capacity; it
stands until these facts are reported differently, a pod of the same owner runs there after all, or an operator clears
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from .node_report import NodeReport

# What a report says of each fact that can be in doubt.
STATED: dict[str, Callable[[NodeReport], Any]] = {
    "numa": lambda report: report.numa,
    "gpu": lambda report: (report.gpus, _devices(report)),
    "isa": lambda report: report.isa,
    "allocatable": lambda report: report.allocatable,
    "labels": lambda report: report.labels,
    "taints": lambda report: report.taints,
}


def _devices(report: NodeReport) -> dict[str, int]:
    return {name: amount for name, amount in report.allocatable.items() if "/" in name}


class Doubt(msgspec.Struct, frozen=True, rename="camel"):
    """One doubtful fact: since when, and which pod was refused why. `owner` is that pod's, see `PodSpec.owner`."""

    fact: str
    since: str
    pod: str
    reason: str
    message: str = ""
    owner: str = ""


def still_in_doubt(doubts: Iterable[Doubt], before: NodeReport, after: NodeReport) -> tuple[Doubt, ...]:
    """Return the doubts that a new report leaves standing; none stands on another machine of the same name."""
    if before.uid != after.uid:
        return ()
    return tuple(doubt for doubt in doubts if STATED[doubt.fact](before) == STATED[doubt.fact](after))
