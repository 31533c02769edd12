"""A cluster at one moment: the nodes, what runs there, and what its files ask to place."""

from __future__ import annotations

import msgspec

from .node_report import NodeReport
from .policy import PolicySpec
from .workload import PodSpec


class ClusterContent(msgspec.Struct, frozen=True):
    """What a cluster file or workload file holds, converted and checked."""

    nodes: tuple[NodeReport, ...] = ()
    running: tuple[PodSpec, ...] = ()
    pending: tuple[PodSpec, ...] = ()
    policies: tuple[PolicySpec, ...] = ()
    namespaces: dict[str, dict[str, str]] = {}
