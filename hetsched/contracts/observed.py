"""What a live cluster shows of a pod: what it asked for, and what became of it.

Rule: facts only, as the API server has them; what follows from them is decided elsewhere. `spec` is None where the pod
neither holds nor asks for anything (it ended, or goes before it ran).
"""

from __future__ import annotations

import msgspec

from .cluster import ClusterContent
from .errors import Problem
from .node_report import NodeReport
from .policy import PolicySpec
from .workload import PodSpec


class ContainerEnd(msgspec.Struct, frozen=True):
    """The container that a pod failed by."""

    container: str
    exit_code: int
    reason: str = ""
    message: str = ""


class ContainerWait(msgspec.Struct, frozen=True):
    """The container of a bound pod that does not start, as with ImagePullBackOff."""

    container: str
    reason: str
    message: str = ""


class NodeRefusal(msgspec.Struct, frozen=True):
    """Why a node does not run a pod that was bound to it; `facts` of it are in doubt, see `doubts`."""

    reason: str
    message: str = ""
    facts: tuple[str, ...] = ()


class ObservedPod(msgspec.Struct, frozen=True):
    """One pod at one moment. `ended` is `succeeded` or `failed`; `deleting` pods hold all that they held."""

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
    """A policy that is kept in a live cluster: its content, or why it cannot be read, or that it is gone."""

    name: str
    uid: str = ""
    generation: int = 0
    spec: PolicySpec | None = None
    problem: Problem | None = None
    gone: bool = False


class Changes(msgspec.Struct):
    """What is different in a live cluster since the last time; `definitions` None: no name changed its meaning.

    `bound` are the keys of pods that were seen waiting and have a node now. Of pods that are gone and not in `stopped`
    only the absence was noticed, or containers ran to the last.
    """

    nodes: list[NodeReport] = []
    nodes_gone: list[str] = []
    pods: list[ObservedPod] = []
    pods_gone: list[str] = []
    stopped: set[str] = set()  # uids of pods that went, and of which nothing ran when they did
    bound: set[str] = set()
    definitions: ClusterContent | None = None

    def __bool__(self) -> bool:
        return bool(self.nodes or self.nodes_gone or self.pods or self.pods_gone or self.definitions is not None)


class Quarantined(msgspec.Struct, frozen=True):
    """An object that could not be read: it is left out, counted and shown."""

    kind: str
    name: str
    code: str
    message: str
