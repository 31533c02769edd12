"""JSON objects in workloads, submissions and holds, shared by the server and the client."""

from __future__ import annotations

import msgspec

from hetsched.contracts.objects.allocation import CardGrant
from hetsched.contracts.objects.warnings import ManifestWarning


class PodState(msgspec.Struct, frozen=True, rename="camel"):
    pod: str
    state: str


class ObjectRow(msgspec.Struct, frozen=True, rename="camel"):
    """Object that a submission creates in a live cluster, with its state and the reason.

    `state` is `wanted`, `made`, `refused`, `unwanted` or `gone`. A Job with an ended pod is `ending` until it is
    `succeeded` or `failed`.
    """

    kind: str
    namespace: str
    name: str
    state: str
    message: str


class ItemProblem(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Problem of one item of a batch; the first item has index 0."""

    index: int
    status: int
    code: str
    detail: str
    place: str = ""
    hint: str = ""


class ItemAnswer(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Result of one item: status 202 with its workload, or another status with a problem."""

    index: int
    status: int
    key: str = ""
    id: str = ""
    state: str = ""
    pods: tuple[PodState, ...] = ()
    replayed: bool = False
    warnings: tuple[ManifestWarning, ...] = ()
    problem: ItemProblem | None = None


class HeldPod(msgspec.Struct, frozen=True, rename="camel"):
    """Capacity that a hold reserves for one pod; `held` is false once the pod uses it or the hold has ended."""

    pod: str
    node: str
    held: bool
    cpus: tuple[str, ...]
    gpus: tuple[CardGrant, ...]
