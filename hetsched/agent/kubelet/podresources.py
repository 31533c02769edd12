"""CPUs, devices and memory that a kubelet has actually assigned to containers, read through its podresources API.

The kubelet's state files are written late, change their format and do not contain devices, and other device plugins
choose GPUs themselves. Only the kubelet knows all assignments. The API identifies pods by name and not by UID. `cpus`
contains exclusive CPUs only and is empty for containers on shared CPUs. CPU ids out of range are dropped.
Source: kubernetes/kubelet, pkg/apis/podresources/v1.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from hetsched.contracts.cpuset import MAX_CPU_ID, format_cpuset, parse_cpuset
from hetsched.contracts.messages.agent_report import KubeletState, MemoryBlock

from ..rpc import podresources_pb2 as messages
from ..unix_channel import CallFailure, UnixChannel

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
MAX_BYTES = 4 * 1024 * 1024  # a hundred times the size of the response for 250 pods with GPUs
TIMEOUT_SECONDS = 5.0
SOURCE = "podresources"
_SERVICE = "v1.PodResourcesLister"


class PodResourcesFailure(CallFailure):
    """A call to the kubelet failed; the code is `NO_SOCKET` if there is no socket."""


class HeldDevices(msgspec.Struct, frozen=True):
    """Devices of one resource by id, and the zones near them if their plugin reports zones."""

    resource: str
    ids: tuple[str, ...]
    zones: tuple[int, ...] = ()


class ContainerResources(msgspec.Struct, frozen=True):
    """Resources of one container; `cpus` is empty if it runs on shared CPUs."""

    name: str
    cpus: str = ""
    devices: tuple[HeldDevices, ...] = ()
    memory: tuple[MemoryBlock, ...] = ()


class PodResources(msgspec.Struct, frozen=True):
    """Resources of one pod."""

    namespace: str
    name: str
    containers: tuple[ContainerResources, ...] = ()


class Allocatable(msgspec.Struct, frozen=True):
    """Resources that a kubelet can assign exclusively: all CPUs except the reserved CPUs, and the healthy devices.

    `memory` contains the memory of each NUMA node; it is empty unless the memory manager is static.
    """

    cpus: str = ""
    devices: tuple[HeldDevices, ...] = ()
    memory: tuple[MemoryBlock, ...] = ()


class PodResourcesClient:
    """Connection to the kubelet through a unix socket."""

    def __init__(self, socket: Path = SOCKET, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.socket = socket
        self._channel = UnixChannel(
            socket, _SERVICE, PodResourcesFailure, most_bytes=MAX_BYTES, timeout_seconds=timeout_seconds
        )

    def pods(self) -> tuple[PodResources, ...]:
        """Return every pod that the kubelet runs, including pods without resources. Raises: PodResourcesFailure."""
        response = self._call("List", messages.ListPodResourcesRequest(), messages.ListPodResourcesResponse)
        return tuple(
            PodResources(item.namespace, item.name, _containers(item.containers)) for item in response.pod_resources
        )

    def allocatable(self) -> Allocatable:
        """Return all exclusively assignable resources, including assigned ones. Raises: PodResourcesFailure."""
        asked = messages.AllocatableResourcesRequest()
        response = self._call("GetAllocatableResources", asked, messages.AllocatableResourcesResponse)
        return Allocatable(_cpus(response.cpu_ids), _devices(response.devices), _memory(response.memory))

    def close(self) -> None:
        self._channel.close()

    def _call(self, method: str, request: Any, answer: Any) -> Any:
        try:
            if not stat.S_ISSOCK(self.socket.stat().st_mode):
                raise PodResourcesFailure("NO_SOCKET", f"{self.socket} is not a socket")
        except OSError as error:
            self.close()
            raise PodResourcesFailure("NO_SOCKET", f"{self.socket}: {error.strerror}") from None
        return self._channel.call(method, request, answer)


def with_pods(
    state: KubeletState | None,
    pods: Iterable[PodResources],
    allocatable: Allocatable | None = None,
    *,
    online: str | None = None,
) -> KubeletState:
    """Return the kubelet's state with the assignments of the API in place of those from its files.

    The UID of a pod is taken from the state files, if they list the same CPUs for a container of the pod. Otherwise the
    pod is listed as `namespace/name`. If `online` is given and the policy is static, the online CPUs that are not
    assignable are returned as the reserved CPUs.
    """
    state = state or KubeletState()
    by_cpus = {(name, cpus): uid for uid, held in state.exclusive.items() for name, cpus in held.items() if uid}
    exclusive: dict[str, dict[str, str]] = {}
    names: dict[str, str] = {}
    devices: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {}
    blocks: dict[str, dict[str, tuple[MemoryBlock, ...]]] = {}
    for pod in pods:
        same = (by_cpus.get((one.name, one.cpus)) for one in pod.containers if one.cpus)
        key = next(filter(None, same), f"{pod.namespace}/{pod.name}")
        if "/" not in key and any(one.cpus or one.devices or one.memory for one in pod.containers):
            names[key] = f"{pod.namespace}/{pod.name}"
        for container in pod.containers:
            if container.cpus:
                exclusive.setdefault(key, {})[container.name] = container.cpus
            if container.memory:
                blocks.setdefault(key, {})[container.name] = container.memory
            for held in container.devices:
                mine = devices.setdefault(key, {}).setdefault(container.name, {})
                mine[held.resource] = (*mine.get(held.resource, ()), *held.ids)
    reserved, number = state.reserved_cpus, state.reserved_number
    if allocatable is not None and allocatable.cpus and online and state.cpu_manager_policy == "static":
        reserved, number = format_cpuset(parse_cpuset(online) - parse_cpuset(allocatable.cpus)), None
    return msgspec.structs.replace(
        state,
        reserved_cpus=reserved,
        reserved_number=number,
        exclusive=exclusive,
        devices=devices,
        device_zones=_device_zones(allocatable.devices) if allocatable is not None else state.device_zones,
        pod_names=names,
        # The checkpoint also contains NUMA nodes without assignable memory.
        memory=state.memory or (_by_zone(allocatable.memory) if allocatable is not None else {}) or None,
        memory_blocks=blocks,
        sources=(*(source for source in state.sources if source != SOURCE), SOURCE),
    )


def _device_zones(listed: Iterable[HeldDevices]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Map each resource and each of its healthy devices to zones; resources without any zone are omitted."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for one in listed:
        for device in one.ids:
            found.setdefault(one.resource, {})[device] = one.zones
    return {resource: devices for resource, devices in found.items() if any(devices.values())}


def _by_zone(memory: Iterable[MemoryBlock]) -> dict[str, dict[str, int]]:
    """Return the assignable bytes of each NUMA node by kind."""
    found: dict[str, dict[str, int]] = {}
    for block in memory:
        for zone in block.zones:
            found.setdefault(str(zone), {})[block.kind] = block.size
    return found


def _containers(listed: Iterable[Any]) -> tuple[ContainerResources, ...]:
    return tuple(
        ContainerResources(item.name, _cpus(item.cpu_ids), _devices(item.devices), _memory(item.memory))
        for item in listed
    )


def _memory(listed: Iterable[Any]) -> tuple[MemoryBlock, ...]:
    return tuple(
        MemoryBlock(tuple(sorted(node.ID for node in item.topology.nodes)), item.memory_type, item.size)
        for item in listed
        if item.size
    )


def _cpus(ids: Iterable[int]) -> str:
    return format_cpuset(cpu for cpu in ids if 0 <= cpu <= MAX_CPU_ID)


def _devices(listed: Iterable[Any]) -> tuple[HeldDevices, ...]:
    return tuple(
        HeldDevices(item.resource_name, tuple(item.device_ids), tuple(node.ID for node in item.topology.nodes))
        for item in listed
    )
