"""A cluster at one moment: the nodes, what runs there, what its files ask to place, and the names they refer to."""

from __future__ import annotations

import msgspec

from .node_report import NodeReport
from .policy import PolicySpec
from .workload import PodSpec, Toleration


class PriorityClass(msgspec.Struct, frozen=True):
    """A named priority; the `default` one is for pods that name none."""

    value: int
    default: bool = False


class RuntimeClass(msgspec.Struct, frozen=True):
    """What a container runtime adds to each of its pods: overhead in base units, and where it is installed."""

    overhead: tuple[tuple[str, int], ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()


class ClusterContent(msgspec.Struct, frozen=True):
    """What a cluster file or workload file holds, converted and checked.

    `namespaces` maps a namespace to its labels, `namespace_policies` to the policy its pods use when they name none,
    `pod_groups` (keys `namespace/name`) to the smallest number of members that may run.
    """

    nodes: tuple[NodeReport, ...] = ()
    running: tuple[PodSpec, ...] = ()
    pending: tuple[PodSpec, ...] = ()
    policies: tuple[PolicySpec, ...] = ()
    namespaces: dict[str, dict[str, str]] = {}
    namespace_policies: dict[str, str] = {}
    priority_classes: dict[str, PriorityClass] = {}
    runtime_classes: dict[str, RuntimeClass] = {}
    pod_groups: dict[str, int] = {}
