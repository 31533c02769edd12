"""Allocation of a placed pod: exact GPUs, zones, CPUs and the execution mode of its instructions."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from ..message import Message
from .devices import DeviceId


class CardGrant(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=False):
    """Share of one GPU: `milli` thousandths of it and `memory_mib` charged to it."""

    index: int
    milli: int
    memory_mib: int = msgspec.field(name="memoryMiB")
    uuid: str | None = None


class ZoneGrant(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """CPUs and memory taken from one NUMA zone; `cpus` is null where only the amount is counted.

    `devices` counts extended resources whose devices are near to the zone.
    """

    name: str
    cpus: str | None = None
    cpu_millis: int = 0
    memory_mib: int = msgspec.field(default=0, name="memoryMiB")
    devices: dict[str, int] | UnsetType = UNSET


class IsaGrant(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=False):
    """Execution mode of the pod's instructions: `mode` is native, emulated or any (no requirement).

    `warnings` name reasons why the pod's images may nevertheless not run there; absent without such reasons.
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


class DeviceGrant(msgspec.Struct, frozen=True):
    """Device that was chosen for a request of one of the pod's resource claims; `uid` is the claim's."""

    claim: str
    uid: str
    request: str
    device: DeviceId


class Allocation(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """All exclusive or exact resources of one pod on its node.

    `predicted` is the expected choice of the node's kubelet, by zone, where the kubelet pins by itself (`cpu_policy` is
    then `static`), until its actual choice is in `zones`.
    """

    gpus: tuple[CardGrant, ...] = ()
    zones: tuple[ZoneGrant, ...] = ()
    isa: IsaGrant | None = None
    cpu_policy: str | None = None
    predicted: tuple[ZoneGrant, ...] = ()
    volumes: tuple[VolumeGrant, ...] = ()
    devices: tuple[DeviceGrant, ...] = ()


EMPTY = Allocation()
