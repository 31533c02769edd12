"""Kubelet allocations for a node's pods, as grants in the node's facts.

A grant identifies a pod by the uid that the kubelet uses; its exclusive CPUs are the union over the pod's containers.
GPUs are listed by id, because the node's GPUs are identified by id. For other resources, the number of devices per zone
is stored, and only devices with exactly one known zone are counted. If a device is near several zones, its resource is
omitted and a problem is added, because topology hints for several zones are not modelled. Memory is summed up by kind
and set of zones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.agent_report import KubeletState, MemoryBlock
from hetsched.contracts.objects.node_report import KubeletGrant, NumaZone, zone_name
from hetsched.contracts.objects.pinned_memory import MemoryGrant, is_memory
from hetsched.contracts.units import GPU_RESOURCES, INT64_MAX

MOST_GRANTS = 1024
MOST_DEVICES = 4096
MOST_RESOURCES = 16  # limit for resources whose devices have zones
_MOST_TEXT = 300

Near = dict[str, dict[str, str]]  # resource -> device -> the zone that the device is in


def zones_of_devices(kubelet: KubeletState, zones: tuple[NumaZone, ...], problems: list[str]) -> Near:
    """Return the NUMA zone of each healthy device by resource and ID; GPUs are omitted (their zone is in `GpuCard`)."""
    names = {zone.name for zone in zones}
    found: Near = {}
    for resource, devices in sorted(kubelet.device_zones.items()):
        if resource in GPU_RESOURCES or len(resource) > _MOST_TEXT or len(devices) > MOST_DEVICES:
            continue
        if any(len(near) > 1 for near in devices.values()):
            what = f"{resource}: devices are near several zones; the predicted kubelet verdict ignores their zones"
            problems.append(f"DeviceZonesUnknown: {what}")
            continue
        near_one = {device: zone_name(near[0]) for device, near in devices.items() if near}
        if len(found) < MOST_RESOURCES and any(zone in names for zone in near_one.values()):
            found[resource] = {device: zone for device, zone in near_one.items() if zone in names}
    return found


def kubelet_grants(
    kubelet: KubeletState, near: Near, problems: list[str], uuids: Mapping[str, str]
) -> tuple[KubeletGrant, ...]:
    """Return the grant of each pod, by uid; pods without exclusive resources are omitted.

    `uuids` maps GPU ids that are not uuids, such as the PCI addresses that some device plugins use, to uuids.
    """
    pods = sorted(kubelet.holders)
    if len(pods) > MOST_GRANTS:
        problems.append(f"KubeletGrantsTooMany: {len(pods)} pods have grants, only the first {MOST_GRANTS} are used")
        pods = pods[:MOST_GRANTS]
    foreign = frozenset(kubelet.foreign)
    grants = []
    for pod in pods:
        devices = kubelet.devices.get(pod, {})
        grant = KubeletGrant(
            pod=pod[:_MOST_TEXT],
            cpus=_cpus(kubelet.exclusive.get(pod, {}), pod, problems),
            name=kubelet.pod_names.get(pod, "")[:_MOST_TEXT],
            gpus=tuple(sorted(uuids.get(one, one) for one in _gpus(devices))),
            devices=_counted(devices, near),
            foreign=pod in foreign,
            memory=_memory(kubelet.memory_blocks.get(pod, {})),
        )
        if grant.cpus or grant.gpus or grant.devices or grant.memory:
            grants.append(grant)
    return tuple(grants)


def _cpus(containers: dict[str, str], pod: str, problems: list[str]) -> str:
    try:
        return format_cpuset(frozenset[int]().union(*(parse_cpuset(text) for text in containers.values())))
    except InputError as error:
        problems.append(f"{error.code}: exclusive CPUs of pod {pod[:80]}: {error.message}")
        return ""


def _gpus(devices: dict[str, dict[str, tuple[str, ...]]]) -> set[str]:
    """Return the ids of a pod's GPUs; for a replica of a shared GPU, this is the id of the GPU itself."""
    return {
        one.partition("::")[0][:_MOST_TEXT]
        for held in devices.values()
        for resource in GPU_RESOURCES
        for one in held.get(resource, ())
    }


def _counted(devices: dict[str, dict[str, tuple[str, ...]]], near: Near) -> dict[str, dict[str, int]]:
    """Return the number of devices that a pod has, by zone and resource."""
    found: dict[str, Counter[str]] = {}
    for held in devices.values():
        for resource, ids in held.items():
            for device in set(ids):
                zone = near.get(resource, {}).get(device)
                if zone is not None:
                    found.setdefault(zone, Counter())[resource] += 1
    return {zone: dict(counts) for zone, counts in sorted(found.items())}


def _memory(containers: Mapping[str, tuple[MemoryBlock, ...]]) -> tuple[MemoryGrant, ...]:
    """Return the memory of a pod; blocks that no kubelet reports are omitted."""
    sizes: Counter[tuple[tuple[int, ...], str]] = Counter()
    for blocks in containers.values():
        for block in blocks:
            if is_memory(block.kind) and len(block.kind) <= _MOST_TEXT and 0 < block.size <= INT64_MAX:
                sizes[tuple(sorted(set(block.zones))), block.kind] += block.size
    return tuple(
        MemoryGrant(tuple(map(zone_name, zones)), kind, size)
        for (zones, kind), size in sorted(sizes.items())[:MOST_RESOURCES]
        if zones and size <= INT64_MAX
    )
