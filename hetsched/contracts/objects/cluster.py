"""Cluster at one time: nodes, running pods, pending pods of its files, and the objects that they refer to."""

from __future__ import annotations

import msgspec

from .devices import Devices
from .node_constraints import Toleration
from .node_report import NodeReport
from .policy import PolicySpec
from .storage import Storage
from .warnings import ManifestWarning
from .workload import LabelSelector, PodGroup, PodSpec


class PriorityClass(msgspec.Struct, frozen=True):
    """Named priority. The `default` class applies to pods without a class; pods preempt only if `preempts` is true."""

    value: int
    default: bool = False
    preempts: bool = True


class RuntimeClass(msgspec.Struct, frozen=True):
    """Runtime class that adds an overhead (base units) and a node selector to each of its pods."""

    overhead: tuple[tuple[str, int], ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()


class ElasticQuota(msgspec.Struct, frozen=True):
    """Guaranteed (`min`) and maximum (`max`) usage of one namespace, in base units by resource name.

    A resource without an entry in `min` is not guaranteed; a resource without an entry in `max` is not limited.
    """

    namespace: str
    name: str
    min: tuple[tuple[str, int], ...] = ()
    max: tuple[tuple[str, int], ...] = ()


class DisruptionBudget(msgspec.Struct, frozen=True):
    """Disruption budget of a namespace: at least `desired_healthy` pods that match `selector` must keep running."""

    namespace: str
    name: str
    selector: LabelSelector | None = None
    desired_healthy: int = 0


class PodUsage(msgspec.Struct, frozen=True):
    """Measured usage of one pod at one time, in base units; `controller` is `Kind/name` as in its PodSpec."""

    namespace: str
    name: str
    controller: str = ""
    amounts: dict[str, int] = {}
    observed_at: str = ""


class ClusterContent(msgspec.Struct, frozen=True):
    """Content of a cluster file or workload file, converted and checked.

    `namespaces` maps each namespace to its labels, `namespace_policies` each namespace to the default policy of its
    pods, and `pod_groups` the key `namespace/name` of each gang to its declaration. `topologies` maps each Topology of
    Kueue to the node labels of its levels, the widest level first. `left_out` names the objects of a workload file
    whose pods another controller creates, for example `DaemonSet kube-system/proxy`. `warnings` lists probable
    misspellings in a workload file.
    """

    nodes: tuple[NodeReport, ...] = ()
    running: tuple[PodSpec, ...] = ()
    pending: tuple[PodSpec, ...] = ()
    policies: tuple[PolicySpec, ...] = ()
    namespaces: dict[str, dict[str, str]] = {}
    namespace_policies: dict[str, str] = {}
    priority_classes: dict[str, PriorityClass] = {}
    runtime_classes: dict[str, RuntimeClass] = {}
    pod_groups: dict[str, PodGroup] = {}
    topologies: dict[str, tuple[str, ...]] = {}
    storage: Storage = Storage()
    devices: Devices = Devices()
    quotas: tuple[ElasticQuota, ...] = ()
    budgets: tuple[DisruptionBudget, ...] = ()
    pod_usages: tuple[PodUsage, ...] = ()
    left_out: tuple[str, ...] = ()
    warnings: tuple[ManifestWarning, ...] = ()
