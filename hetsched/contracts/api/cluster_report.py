"""Report of `hetsched look` about one cluster at one time.

Field names, codes and levels are a public contract (camelCase JSON): fields and codes may be added but not renamed. A
finding is about one object, or about similar objects that have the same fault, such as the pods of one controller.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hetsched.contracts.documents import to_plain

from ..message import Message
from ..objects.cluster import ClusterContent
from ..objects.observed import ObservedPod, Quarantined
from .decision import PolicyRef
from .findings import Level

MOST_NAMED = 10
LEVELS = (Level.ERROR, Level.WARNING, Level.NOTE)


FRAGMENTATION = "the share of all GPU capacity that is free but that no typical GPU pod of this cluster can use"
IMAGE_PLATFORMS = "image platforms"  # part that is unchecked if the platforms of images are unknown


class UncheckedPart(msgspec.Struct, frozen=True):
    """Part of the cluster that the report does not cover, with the reason."""

    part: str
    reason: Message


class ClusterObservation(msgspec.Struct, frozen=True):
    """Content of a cluster as read for a report.

    `rejected` are the pods that their node did not run, and `unhealthy` the pods with devices that are not healthy, or
    whose health is unknown. `quarantined` are objects that could not be read.
    """

    content: ClusterContent
    rejected: tuple[ObservedPod, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    unchecked: tuple[UncheckedPart, ...] = ()
    unhealthy: tuple[ObservedPod, ...] = ()


class ClusterFinding(msgspec.Struct, frozen=True, rename="camel"):
    """One fault: the affected object or group of similar objects, the evidence and the remedy.

    `name` is the name of an object of kind `kind`, for example `Deployment` and `ns/web`. `affected` lists the first
    `MOST_NAMED` of the `count` affected pods or nodes.
    """

    code: str
    level: Level
    kind: str
    name: str
    message: Message
    evidence: tuple[Message, ...]
    remedy: Message
    affected: tuple[str, ...] = ()
    count: int = 1


class PodRegret(msgspec.Struct, frozen=True, rename="camel"):
    """A running pod that the policy would place on another node.

    `regret` is the score of `better` minus the score of `node`, in points of the policy; `rank` is the rank of `node`.
    """

    pod: str
    node: str
    better: str
    regret: float
    rank: int


class PlacementRegret(msgspec.Struct, frozen=True, rename="camel"):
    """Comparison of the nodes of running pods with the choices of the policy.

    `compared` of `pods` movable pods were compared. The policy would place `elsewhere` of them on another node; `mean`
    is the mean regret of all compared pods. `largest` lists the pods with the largest regret.
    """

    pods: int
    compared: int
    elsewhere: int
    mean: float
    largest: tuple[PodRegret, ...] = ()


class GpuSummary(msgspec.Struct, frozen=True, rename="camel"):
    """GPUs of the cluster: healthy whole GPUs, allocated and stranded GPUs, and FGD's fragmentation (0-1).

    `fragmentation` is the share of all GPU capacity that is free but that no typical GPU pod of the cluster can use; it
    is None if no pod requests a GPU.
    """

    total: int
    allocated: float
    stranded: int
    fragmentation: float | None


class ClusterReport(msgspec.Struct, frozen=True, rename="camel"):
    """The complete report; findings are sorted by level, code and object."""

    evaluated_at: str
    snapshot: str
    policy: PolicyRef
    nodes: int
    running: int
    pending: int
    gpus: GpuSummary
    counts: dict[str, int]
    findings: tuple[ClusterFinding, ...]
    regret: PlacementRegret
    unchecked: tuple[UncheckedPart, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON document of dicts, lists and scalars."""
        built: dict[str, Any] = to_plain(self)
        return built

    def fails(self, level: Level) -> bool:
        """Return whether a finding has this or a worse level."""
        return any(LEVELS.index(finding.level) <= LEVELS.index(level) for finding in self.findings)
