"""Observed state of a live cluster: pods with their requests and outcomes, policies and changes.

The structs hold facts from the API server without interpreting them. `spec` is None for a pod that needs no resources
because it ended, or was deleted before it ran.
"""

from __future__ import annotations

import msgspec

from ..errors import Problem
from .cluster import ClusterContent
from .node_report import NodeReport
from .policy import PolicySpec
from .workload import PodSpec


class ContainerEnd(msgspec.Struct, frozen=True):
    """Terminated container that made its pod fail."""

    container: str
    exit_code: int
    reason: str = ""
    message: str = ""


class ContainerWait(msgspec.Struct, frozen=True):
    """A container of a bound pod that does not start, for example because of ImagePullBackOff."""

    container: str
    reason: str
    message: str = ""


class NodeRefusal(msgspec.Struct, frozen=True):
    """Reason why a node rejected a pod that was bound to it; `facts` lists the node's facts in conflict."""

    reason: str
    message: str = ""
    facts: tuple[str, ...] = ()


class DeviceHealth(msgspec.Struct, frozen=True):
    """Device of a container whose health the kubelet does not report as `Healthy`.

    `resource` is an extended resource, or `claim:CLAIM/REQUEST`. `health` is `Unhealthy` or `Unknown`.
    """

    container: str
    resource: str
    device: str
    health: str
    message: str = ""


class ObservedPod(msgspec.Struct, frozen=True, gc=False):
    """One pod at one time. `ended` is `succeeded` or `failed`; `deleting` pods keep their allocation.

    `devices` lists the devices of its containers that are not healthy, or whose health is unknown.
    """

    namespace: str
    name: str
    uid: str
    version: str = ""
    scheduler_name: str = ""
    node_name: str = ""
    phase: str = ""
    ended: str = ""
    deleting: bool = False
    reason: str = ""
    message: str = ""
    end: ContainerEnd | None = None
    wait: ContainerWait | None = None
    refusal: NodeRefusal | None = None
    devices: tuple[DeviceHealth, ...] = ()
    spec: PodSpec | None = None

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class ObservedPolicy(msgspec.Struct, frozen=True):
    """Policy object in a live cluster: its content, its error, or its deletion."""

    name: str
    uid: str = ""
    generation: int = 0
    spec: PolicySpec | None = None
    problem: Problem | None = None
    gone: bool = False


class Changes(msgspec.Struct):
    """Changes of a live cluster since the last read; `definitions` is None if no referenced object changed.

    `bound` contains the keys of pods that were pending at the last read and have a node now. A deleted pod that is not
    in `stopped` may have had running containers at its deletion. `rebooted` lists nodes with a new boot ID.
    """

    nodes: list[NodeReport] = []
    nodes_gone: list[str] = []
    pods: list[ObservedPod] = []
    pods_gone: list[str] = []
    stopped: set[str] = set()  # UIDs of deleted pods without running containers at their deletion
    bound: set[str] = set()
    rebooted: set[str] = set()
    definitions: ClusterContent | None = None

    def __bool__(self) -> bool:
        found = self.nodes or self.nodes_gone or self.pods or self.pods_gone or self.rebooted
        return bool(found or self.definitions is not None)


class Handover(msgspec.Struct, frozen=True):
    """Watch position of the informer of an epoch when it released its lease: all changes up to it are in the rows.

    `versions` maps each resource to the resourceVersion of its latest change.
    """

    epoch: int
    versions: dict[str, int]


class Quarantined(msgspec.Struct, frozen=True):
    """Object that could not be parsed, which is ignored, counted and shown to users."""

    kind: str
    name: str
    code: str
    message: str
