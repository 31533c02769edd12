"""Facts of a node that conflict with the behaviour of its kubelet.

A node with a wrong report would repeatedly receive pods that it cannot run. When a kubelet rejects a pod, the facts
that admitted the pod are marked as in conflict. A conflict does not change the capacity. It lasts until these facts are
reported differently, a pod of the same owner runs on the node, or an operator clears it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from .node_report import NodeReport

# Facts that can be in conflict, each with the function that reads its value from a report.
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


class FactConflict(msgspec.Struct, frozen=True, rename="camel"):
    """One fact in conflict, with the rejected pod and the reason. `owner` is the `PodSpec.owner` of the pod."""

    fact: str
    since: str
    pod: str
    reason: str
    message: str = ""
    owner: str = ""


def remaining_conflicts(
    doubts: Iterable[FactConflict], before: NodeReport, after: NodeReport
) -> tuple[FactConflict, ...]:
    """Return the conflicts that remain after a new report; none remain if the node is now another machine."""
    if before.uid != after.uid:
        return ()
    return tuple(doubt for doubt in doubts if STATED[doubt.fact](before) == STATED[doubt.fact](after))
