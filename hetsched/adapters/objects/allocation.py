"""The annotation `hetsched.io/allocation` with a pod's allocation, and crane's older `topology-result`.

`hetsched.io/allocation` is the contract's JSON (version 1). Unknown members are ignored; one invalid member invalidates
the whole annotation. `containers` is derived from the other members; it is written for agents that pin CPUs and is
never read. CPUs outside all listed zones form a grant without a zone. A zone of crane's `topology-result` states its
CPU as a quantity.
Invariant: `parse_allocation(write_allocation(allocation)) == allocation`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, from_parts
from hetsched.contracts.objects.allocation import (
    Allocation,
    CardGrant,
    DeviceGrant,
    ExtendedClaim,
    IsaGrant,
    VolumeGrant,
    ZoneGrant,
)
from hetsched.contracts.objects.cards import MAX_CARD_UUID, MAX_CARDS
from hetsched.contracts.objects.pinned_memory import MemoryGrant
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.units import CPU, MEMORY, MIB, format_amount, parse_amount

_NUMBER_AT_END = re.compile(r"[0-9]{1,9}$")
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _Gpu(msgspec.Struct):
    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_CARDS)]
    milli: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1000
    memory_mib: Count = msgspec.field(default=0, name="memoryMiB")
    uuid: Annotated[str, msgspec.Meta(max_length=MAX_CARD_UUID)] | None = None


class _Zone(msgspec.Struct):
    name: str
    cpus: str | None = None
    cpu_millis: Count = msgspec.field(default=0, name="cpuMillis")
    memory_mib: Count = msgspec.field(default=0, name="memoryMiB")
    devices: dict[str, Count] | msgspec.UnsetType = msgspec.UNSET


class _Isa(msgspec.Struct):
    mode: Literal["native", "emulated", "any"] = "any"
    required: str | None = None
    offered: str | None = None
    slowdown: float | None = None
    warnings: tuple[Message, ...] | msgspec.UnsetType = msgspec.UNSET


class _Annotation(msgspec.Struct):
    v: Literal[1]
    cpus: str = ""
    zones: tuple[_Zone, ...] = ()
    gpus: tuple[_Gpu, ...] = ()
    isa: _Isa | None = None
    policy: str | None = None
    predicted: tuple[_Zone, ...] = ()
    volumes: tuple[VolumeGrant, ...] = ()
    devices: tuple[DeviceGrant, ...] = ()
    memory: tuple[MemoryGrant, ...] | msgspec.UnsetType = msgspec.UNSET
    extended: ExtendedClaim | msgspec.UnsetType = msgspec.UNSET


class _CraneResources(msgspec.Struct):
    capacity: dict[str, str] = {}


class _CraneZone(msgspec.Struct):
    name: str
    resources: _CraneResources = msgspec.field(default_factory=_CraneResources)


def parse_allocation(text: str) -> Allocation:
    """Parse a `hetsched.io/allocation` annotation.

    Raises: InputError `AllocationMalformed` or `CpusetMalformed`.
    """
    try:
        found = msgspec.json.decode(text, type=_Annotation, dec_hook=from_parts)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(
            "AllocationMalformed", Message("the value is not an allocation: {text}", text=str(error))
        ) from None
    in_zones = frozenset[int]().union(*(parse_cpuset(zone.cpus or "") for zone in found.zones + found.predicted))
    elsewhere = parse_cpuset(found.cpus) - in_zones
    if len({gpu.index for gpu in found.gpus}) != len(found.gpus):
        raise InputError("AllocationMalformed", "the allocation names a GPU twice")
    isa = found.isa
    return Allocation(
        gpus=tuple(CardGrant(gpu.index, gpu.milli, gpu.memory_mib, gpu.uuid) for gpu in found.gpus),
        zones=_grants(found.zones) + ((ZoneGrant("", format_cpuset(elsewhere)),) if elsewhere else ()),
        isa=None if isa is None else IsaGrant(isa.mode, isa.required, isa.offered, isa.slowdown, isa.warnings),
        cpu_policy=found.policy,
        predicted=_grants(found.predicted),
        volumes=found.volumes,
        devices=found.devices,
        memory=found.memory,
        extended=found.extended,
    )


def _grants(zones: tuple[_Zone, ...]) -> tuple[ZoneGrant, ...]:
    return tuple(ZoneGrant(zone.name, zone.cpus, zone.cpu_millis, zone.memory_mib, zone.devices) for zone in zones)


def parse_topology_result(text: str) -> Allocation:
    """Parse crane's `topology-result` annotation: the zones, with the CPU allocated from each.

    Raises: InputError `AllocationMalformed`, or the error of an invalid quantity.
    """
    try:
        zones = msgspec.json.decode(text, type=list[_CraneZone])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(
            "AllocationMalformed", Message("the value is not a list of zones: {text}", text=str(error))
        ) from None
    return Allocation(
        zones=tuple(
            ZoneGrant(
                zone.name,
                cpu_millis=parse_amount("cpu", zone.resources.capacity.get("cpu", "0")),
                memory_mib=parse_amount("memory", zone.resources.capacity.get("memory", "0")) // 2**20,
            )
            for zone in zones
        )
    )


def write_topology_result(allocation: Allocation) -> str:
    """Format crane's `topology-result`, with zones named `node<ID>`; the result is empty if no zone is allocated."""
    zones = []
    for zone in allocation.zones:
        cpu_millis = zone.cpu_millis or 1000 * len(parse_cpuset(zone.cpus or ""))
        amounts = {CPU: cpu_millis, MEMORY: zone.memory_mib * MIB}
        capacity = {name: format_amount(name, amount) for name, amount in amounts.items() if amount}
        number = _NUMBER_AT_END.search(zone.name)
        if number is not None and capacity:
            resources = {"resources": {"capacity": capacity}}
            zones.append({"name": f"node{int(number[0])}", "type": "Node", **resources})
    return encode(zones).decode() if zones else ""


def by_container(pod: PodSpec) -> dict[str, str]:
    """Return the CPU list of each container of a pod; {} if the pod has no allocated CPUs or no CPU requests.

    Exclusive CPUs are assigned in descending order of the containers' requests. Each container gets its CPUs from the
    smallest zone that fits the whole request, otherwise from several zones in turn. Under the policies `numa` and
    `none`, every container gets the shared CPUs of all the pod's zones.
    """
    allocation, names = pod.allocation, pod.container_names
    zones = [sorted(parse_cpuset(zone.cpus or "")) for zone in allocation.zones] if allocation is not None else []
    demands = [(c.cpus, name) for c, name in zip(pod.shape.containers, names, strict=False) if c.cpus and not c.init]
    if allocation is None or not any(zones) or not demands:
        return {}
    if allocation.cpu_policy in ("numa", "none"):
        return dict.fromkeys((name for _, name in demands), format_cpuset(cpu for zone in zones for cpu in zone))
    dealt: dict[str, str] = {}
    for cpus, name in sorted(demands, key=lambda demand: -demand[0]):
        whole = [zone for zone in zones if len(zone) >= cpus]
        taken: list[int] = []
        for zone in [min(whole, key=len)] if whole else zones:
            count = cpus - len(taken)
            taken += zone[:count]
            del zone[:count]
        dealt[name] = format_cpuset(taken)
    return {name: dealt[name] for _, name in demands}


def write_allocation(allocation: Allocation, containers: Mapping[str, str] | None = None) -> str:
    """Format the annotation's JSON in the contract's member order; `containers` maps names to CPU lists."""
    named = [zone.cpus for zone in allocation.zones if zone.cpus]
    document: dict[str, object] = {"v": 1}
    if named:
        document["cpus"] = ",".join(named)
    document["zones"] = allocation.zones
    document["gpus"] = allocation.gpus
    if allocation.isa is not None:
        document["isa"] = allocation.isa
    if allocation.cpu_policy is not None:
        document["policy"] = allocation.cpu_policy
    if containers:
        document["containers"] = dict(containers)
    if allocation.predicted:
        document["predicted"] = allocation.predicted
    if allocation.volumes:
        document["volumes"] = allocation.volumes
    if allocation.devices:
        document["devices"] = allocation.devices
    if allocation.memory:
        document["memory"] = allocation.memory
    if allocation.extended:
        document["extended"] = allocation.extended
    return encode(document).decode()
