"""Observed state of a pod in a live cluster: its request and its outcome.

The structs hold facts of the API server; consequences are decided elsewhere. `spec` is None for a pod that neither
holds nor requests resources (it ended, or is deleted before it ran).
"""

from __future__ import annotations

import msgspec

from ..errors import Problem
from .cluster import ClusterContent
from .node_report import NodeReport
from .policy import PolicySpec
from .workload import PodSpec


class ContainerEnd(msgspec.Struct, frozen=True):
    """The container that made a pod fail."""

    container: str
    exit_code: int
    reason: str = ""
    message: str = ""


class ContainerWait(msgspec.Struct, frozen=True):
    """The container of a bound pod that does not start, for example with ImagePullBackOff."""

    container: str
    reason: str
    message: str = ""


class NodeRefusal(msgspec.Struct, frozen=True):
    """Reason why a node does not run a pod that was bound to it; `facts` of the node are in conflict, see `doubts`."""

    reason: str
    message: str = ""
    facts: tuple[str, ...] = ()


class ObservedPod(msgspec.Struct, frozen=True):
    """One pod at one moment. `ended` is `succeeded` or `failed`; `deleting` pods keep their allocation."""

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
    spec: PodSpec | None = None

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class ObservedPolicy(msgspec.Struct, frozen=True):
    """Policy that is stored in a live cluster: its content, or the error in it, or its deletion."""

    name: str
    uid: str = ""
    generation: int = 0
    spec: PolicySpec | None = None
    problem: Problem | None = None
    gone: bool = False


class Changes(msgspec.Struct):
    """Changes of a live cluster since the last read; `definitions` None: no referenced object changed.

    `bound` are the keys of pods that were seen pending and have a node now. For deleted pods that are not in `stopped`,
    only the absence was observed, or containers ran to the end. `rebooted` nodes report a new boot ID.
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


class Quarantined(msgspec.Struct, frozen=True):
    """Object that could not be read: it is left out, counted and shown."""

    kind: str
    name: str
    code: str
    message: str
