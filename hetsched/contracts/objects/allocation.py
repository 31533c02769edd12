"""Allocation of a placed pod: exact GPUs, zones, CPUs and the execution mode of its instructions."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from ..message import Message
from .devices import BindingConditions, DeviceId
from .node_constraints import NodeTerm
from .pinned_memory import MemoryGrant


class CardGrant(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=False):
    """Share of one GPU: `milli` thousandths of the GPU and `memory_mib` of its memory."""

    index: int
    milli: int
    memory_mib: int = msgspec.field(name="memoryMiB")
    uuid: str | None = None


class ZoneGrant(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """CPUs and memory allocated from one NUMA zone.

    `cpus` is null if an amount of CPU is allocated but no particular CPUs. `devices` contains the amounts of extended
    resources whose devices are near the zone.
    """

    name: str
    cpus: str | None = None
    cpu_millis: int = 0
    memory_mib: int = msgspec.field(default=0, name="memoryMiB")
    devices: dict[str, int] | UnsetType = UNSET


class IsaGrant(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=False):
    """Execution mode of the pod's instructions: `mode` is native, emulated or any (no requirement).

    `warnings` lists reasons why the pod's images may still not run on the node; it is omitted if there are none.
    """

    mode: str
    required: str | None = None
    offered: str | None = None
    slowdown: float | None = None
    warnings: tuple[Message, ...] | msgspec.UnsetType = msgspec.UNSET


class VolumeGrant(msgspec.Struct, frozen=True, gc=False):
    """Existing volume that was chosen for one of the pod's claims."""

    claim: str
    volume: str


class DeviceGrant(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Device that was chosen for a request of one of the pod's resource claims; `uid` is the UID of the claim.

    `node_terms` selects the nodes that can access the device; an empty tuple means all nodes, None only the pod's node.
    `consumed` is the consumed capacity (in thousandths, by name) if the pod gets a share of the device, else None. With
    admin access (`admin`), the device is not used exclusively. `zone` is the near NUMA zone, or None if it is unknown.
    `binding` contains the conditions that the pod waits for before it is bound.
    """

    claim: str
    uid: str
    request: str
    device: DeviceId
    node_terms: tuple[NodeTerm, ...] | None = None
    admin: bool = False
    consumed: dict[str, int] | None = None
    zone: str | None = None
    binding: BindingConditions | None = None


class ClaimedDevices(msgspec.Struct, frozen=True, rename="camel"):
    """Request of a claim for extended resources: `count` devices of a class."""

    name: str
    device_class: str
    count: int


class DeviceMapping(msgspec.Struct, frozen=True):
    """Request of the claim that serves an extended resource of a container."""

    container: str
    resource: str
    request: str


class ExtendedClaim(msgspec.Struct, frozen=True):
    """Resource claim that hetsched creates for the extended resources of a pod that devices serve.

    The kubelet reads `mappings` in the status of the pod.
    """

    name: str
    requests: tuple[ClaimedDevices, ...]
    mappings: tuple[DeviceMapping, ...]


class Allocation(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """All resources that one pod uses exclusively or in exact amounts on its node.

    If the node's kubelet pins CPUs (`cpu_policy` is static), `predicted` is the kubelet's expected choice of zones,
    until the actual choice is known and stored in `zones`. `memory` is the memory that a kubelet with the static memory
    manager is expected to assign. `extended` is the claim for extended resources. Both are omitted if there are none.
    """

    gpus: tuple[CardGrant, ...] = ()
    zones: tuple[ZoneGrant, ...] = ()
    isa: IsaGrant | None = None
    cpu_policy: str | None = None
    predicted: tuple[ZoneGrant, ...] = ()
    volumes: tuple[VolumeGrant, ...] = ()
    devices: tuple[DeviceGrant, ...] = ()
    memory: tuple[MemoryGrant, ...] | UnsetType = UNSET
    extended: ExtendedClaim | UnsetType = UNSET

    @property
    def device_resources(self) -> frozenset[str]:
        """The extended resources that devices of the claim `extended` serve."""
        return frozenset(each.resource for each in self.extended.mappings) if self.extended else frozenset()

    @property
    def gpu_milli(self) -> int:
        """Thousandths of GPUs."""
        return sum(card.milli for card in self.gpus)


EMPTY = Allocation()
