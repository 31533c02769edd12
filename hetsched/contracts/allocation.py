"""What a placed pod holds: exact cards, zones, CPUs and the way its instructions run."""

from __future__ import annotations

import msgspec

from .devices import DeviceId


class CardGrant(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=False):
    """A share of one card: `milli` thousandths of it and `memory_mib` charged to it."""

    index: int
    milli: int
    memory_mib: int = msgspec.field(name="memoryMiB")
    uuid: str | None = None


class ZoneGrant(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """CPUs and memory taken from one NUMA zone; `cpus` is null where the zone is only counted."""

    name: str
    cpus: str | None = None
    cpu_millis: int = 0
    memory_mib: int = msgspec.field(default=0, name="memoryMiB")


class IsaGrant(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=False):
    """How the pod's instructions run: `mode` is native, emulated or any (nothing was asked)."""

    mode: str
    required: str | None = None
    offered: str | None = None
    slowdown: float | None = None


class VolumeGrant(msgspec.Struct, frozen=True, gc=False):
    """An existing volume that was chosen for one of the pod's claims."""

    claim: str
    volume: str


class DeviceGrant(msgspec.Struct, frozen=True):
    """A device that was chosen for a request of one of the pod's resource claims; `uid` is the claim's."""

    claim: str
    uid: str
    request: str
    device: DeviceId


class Allocation(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Everything exclusive or exact that one pod holds on its node.

    `predicted` is what the node's kubelet is expected to take of its zones where it pins by itself (`cpu_policy` is
    then `static`), until its own choice stands in `zones`.
    """

    gpus: tuple[CardGrant, ...] = ()
    zones: tuple[ZoneGrant, ...] = ()
    isa: IsaGrant | None = None
    cpu_policy: str | None = None
    predicted: tuple[ZoneGrant, ...] = ()
    volumes: tuple[VolumeGrant, ...] = ()
    devices: tuple[DeviceGrant, ...] = ()


EMPTY = Allocation()
