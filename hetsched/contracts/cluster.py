"""A cluster at one moment: the nodes, what runs there, what its files ask to place, and the names they refer to."""

from __future__ import annotations

import msgspec

from .devices import Devices
from .node_report import NodeReport
from .policy import PolicySpec
from .storage import Storage
from .workload import LabelSelector, PodGroup, PodSpec, Toleration


class PriorityClass(msgspec.Struct, frozen=True):
    """A named priority; the `default` one is for pods that name none. `preempts` false: its pods evict nobody."""

    value: int
    default: bool = False
    preempts: bool = True


class RuntimeClass(msgspec.Struct, frozen=True):
    """What a container runtime adds to each of its pods: overhead in base units, and where it is installed."""

    overhead: tuple[tuple[str, int], ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()


class ElasticQuota(msgspec.Struct, frozen=True):
    """What one namespace is guaranteed (`min`) and may use at most (`max`), in base units, by resource name.

    A resource that `min` leaves out is guaranteed 0, one that `max` leaves out is not limited.
    """

    namespace: str
    name: str
    min: tuple[tuple[str, int], ...] = ()
    max: tuple[tuple[str, int], ...] = ()


class DisruptionBudget(msgspec.Struct, frozen=True):
    """The pods of one namespace of which at least `desired_healthy` should keep running."""

    namespace: str
    name: str
    selector: LabelSelector | None = None
    desired_healthy: int = 0


class PodUsage(msgspec.Struct, frozen=True):
    """Measured use of one pod at one moment, in base units; `controller` is `Kind/name` as in its PodSpec."""

    namespace: str
    name: str
    controller: str = ""
    amounts: dict[str, int] = {}
    observed_at: str = ""


class ClusterContent(msgspec.Struct, frozen=True):
    """What a cluster file or workload file holds, converted and checked.

    `namespaces` maps a namespace to its labels, `namespace_policies` to the policy its pods use when they name none,
    `pod_groups` (keys `namespace/name`) to what is declared about each gang. `left_out` names the objects of a workload
    file whose pods somebody else makes: `DaemonSet kube-system/proxy`.
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
    storage: Storage = Storage()
    devices: Devices = Devices()
    quotas: tuple[ElasticQuota, ...] = ()
    budgets: tuple[DisruptionBudget, ...] = ()
    pod_usages: tuple[PodUsage, ...] = ()
    left_out: tuple[str, ...] = ()
