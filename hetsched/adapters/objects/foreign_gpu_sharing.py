"""Allocations and device registers of other schedulers: HAMi, Volcano and Koordinator.

If another scheduler also allocates GPUs or CPUs, hetsched must respect its allocations. Their annotations are read and
never written. HAMi and Volcano register a node's GPUs in an annotation, as JSON or as text with `:` between GPUs and
`,` between fields. On such a node, `nvidia.com/gpu` counts the slots of all GPUs, so the annotation takes precedence.
Koordinator writes a pod's CPU set and GPUs. The CPU set is used only if the pod requests as many CPUs, and the GPUs
only if it requests GPUs, because any user who creates a pod can set its annotations.
Source: HAMi docs/develop/protocol.md; volcano-sh devices; koordinator-sh apis/extension.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import Allocation, CardGrant, ZoneGrant
from hetsched.contracts.objects.cards import MAX_CARD_UUID, MAX_CARDS, vendor_of
from hetsched.contracts.objects.node_report import GpuCard, zone_name
from hetsched.contracts.units import CPU, GPU_RESOURCES, MIB, parse_amount

REGISTERS = ("hami.io/node-nvidia-register", "volcano.sh/node-vgpu-register")
CPUS = "scheduling.koordinator.sh/resource-status"
DEVICES = "scheduling.koordinator.sh/device-allocated"
_KOORDINATOR = "koordinator.sh/"
PROBLEM = "RegisterUnreadable"


class _Card(msgspec.Struct):
    uuid: str = msgspec.field(default="", name="id")
    index: int | None = None
    memory_mib: int | None = msgspec.field(default=None, name="devmem")
    model: str = msgspec.field(default="", name="type")
    numa: int = -1
    healthy: bool = msgspec.field(default=True, name="health")


class _Device(msgspec.Struct):
    minor: int
    resources: dict[str, Any] = {}


class _Devices(msgspec.Struct):
    gpu: list[_Device] = []


class _Cpus(msgspec.Struct):
    cpuset: str = ""


def registered_cards(annotations: Mapping[str, str], problems: list[str]) -> tuple[GpuCard, ...] | None:
    """Return the GPUs that another scheduler's device plugin registered, or None if no annotation is readable."""
    for key in REGISTERS:
        if key in annotations:
            try:
                return _cards(_registered(annotations[key])) or None
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                problems.append(f"{PROBLEM}: {key}: {error}"[:300])
    return None


def _registered(text: str) -> list[_Card]:
    if text.lstrip().startswith("["):
        return msgspec.json.decode(text, type=list[_Card])
    return [_from_fields(part.split(",")) for part in text.split(":") if part.strip()]


def _from_fields(fields: list[str]) -> _Card:
    """Parse uuid, slots, memory, cores, model, NUMA node, health and an optional index of one GPU.

    An older format lacks cores, NUMA node and index.
    """
    if len(fields) >= 7:
        index = int(fields[7]) if len(fields) > 7 and fields[7].isdecimal() else None
        return _Card(fields[0], index, int(fields[2]), fields[4], int(fields[5] or -1), fields[6].strip() == "true")
    if len(fields) == 5:
        return _Card(fields[0], None, int(fields[2]), fields[3], healthy=fields[4].strip() == "true")
    raise ValueError(f"a GPU entry has {len(fields)} fields instead of 5 or at least 7")


def _cards(registered: list[_Card]) -> tuple[GpuCard, ...]:
    stated = [card.index for card in registered]
    numbered = stated if None not in stated and len(set(stated)) == len(stated) else list(range(len(registered)))
    if len(registered) > MAX_CARDS or any(not 0 <= (index or 0) < MAX_CARDS for index in numbered):
        raise ValueError(f"at most {MAX_CARDS} GPUs, with indices below {MAX_CARDS}, are supported")
    if any(len(card.uuid) > MAX_CARD_UUID for card in registered):
        raise ValueError(f"a uuid is longer than {MAX_CARD_UUID} characters")
    found = [
        GpuCard(
            index=index or 0,
            uuid=card.uuid or None,
            model=card.model or None,
            vendor=vendor_of(card.model) or "nvidia",
            memory_mib=card.memory_mib if card.memory_mib is not None and 0 < card.memory_mib < 2**40 else None,
            # HAMi also writes 0 if the machine has no NUMA, so 0 is treated as unknown
            numa_zone=zone_name(card.numa) if card.numa > 0 else None,
            healthy=card.healthy,
        )
        for index, card in zip(numbered, registered, strict=True)
    ]
    return tuple(sorted(found, key=lambda card: card.index))


def held_by_koordinator(annotations: Mapping[str, str], requests: Mapping[str, int]) -> Allocation | None:
    """Return Koordinator's allocation for a running pod, or None if it contains nothing that the pod requests.

    Raises: InputError `AllocationMalformed`, `CpusetMalformed`, or the error of an invalid quantity.
    """
    cpus = ""
    gpus: tuple[CardGrant, ...] = ()
    if CPUS in annotations:
        named = parse_cpuset(_decoded(annotations[CPUS], _Cpus).cpuset)
        if named and 1000 * len(named) <= requests.get(CPU, 0) + 999:
            cpus = format_cpuset(named)
    if DEVICES in annotations and any(name.startswith(_KOORDINATOR) or name in GPU_RESOURCES for name in requests):
        gpus = tuple(map(_grant, _decoded(annotations[DEVICES], _Devices).gpu))
        if len({grant.index for grant in gpus}) != len(gpus):
            raise InputError("AllocationMalformed", "the allocation names a GPU twice")
    if not cpus and not gpus:
        return None
    return Allocation(gpus=gpus, zones=(ZoneGrant("", cpus),) if cpus else ())


def _grant(device: _Device) -> CardGrant:
    amounts = {name.removeprefix(_KOORDINATOR): parse_amount(name, value) for name, value in device.resources.items()}
    percent = max(amounts.get("gpu-core", 0), amounts.get("gpu-memory-ratio", 0)) or 100
    if not 0 <= device.minor < MAX_CARDS:
        raise InputError("AllocationMalformed", Message("there is no GPU {n}", n=device.minor))
    return CardGrant(device.minor, min(10 * percent, 1000), amounts.get("gpu-memory", 0) // MIB)


def _decoded(text: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(
            "AllocationMalformed", Message("the value is not a Koordinator allocation: {text}", text=str(error))
        ) from None
