"""What a kubelet really gave to the containers of its machine, asked by its podresources interface.

Problem: the kubelet's own state files lag, change their form and leave devices out, and a device plugin of somebody
else chooses cards by itself; only the kubelet knows who holds what.
Rule: pods have names here and no uid. `cpus` are exclusive ones alone: whoever shares has none. Numbers that no machine
can have are left out.
Source: kubernetes/kubelet, pkg/apis/podresources/v1.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hetsched.contracts.agent_report import KubeletState
from hetsched.contracts.cpuset import MAX_CPU_ID, format_cpuset, parse_cpuset

from .rpc import podresources_pb2 as messages
from .unix_channel import CallFailure, UnixChannel

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
MAX_BYTES = 4 * 1024 * 1024  # a hundred times what 250 pods with cards take
TIMEOUT_SECONDS = 5.0
SOURCE = "podresources"
_SERVICE = "v1.PodResourcesLister"


class PodResourcesFailure(CallFailure):
    """The kubelet did not answer; the code is `NO_SOCKET` where there is nothing to ask."""


class HeldDevices(msgspec.Struct, frozen=True):
    """Devices of one resource, by their ids, and the zones they are near to as far as their plugin tells."""

    resource: str
    ids: tuple[str, ...]
    zones: tuple[int, ...] = ()


class ContainerResources(msgspec.Struct, frozen=True):
    """What one container holds; `cpus` is empty where it shares."""

    name: str
    cpus: str = ""
    devices: tuple[HeldDevices, ...] = ()


class PodResources(msgspec.Struct, frozen=True):
    """What one pod holds."""

    namespace: str
    name: str
    containers: tuple[ContainerResources, ...] = ()


class Allocatable(msgspec.Struct, frozen=True):
    """What a kubelet can give to containers for their own: all CPUs but the reserved ones, and the healthy devices."""

    cpus: str = ""
    devices: tuple[HeldDevices, ...] = ()


class Lister:
    """One connection to the kubelet behind a unix socket."""

    def __init__(self, socket: Path = SOCKET, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.socket = socket
        self._channel = UnixChannel(
            socket, _SERVICE, PodResourcesFailure, most_bytes=MAX_BYTES, timeout_seconds=timeout_seconds
        )

    def pods(self) -> tuple[PodResources, ...]:
        """Return every pod that the kubelet runs, also those that hold nothing. Raises: PodResourcesFailure."""
        said = self._call("List", messages.ListPodResourcesRequest(), messages.ListPodResourcesResponse)
        return tuple(PodResources(one.namespace, one.name, _containers(one.containers)) for one in said.pod_resources)

    def allocatable(self) -> Allocatable:
        """Return what can be given out, held or not. Raises: PodResourcesFailure."""
        asked = messages.AllocatableResourcesRequest()
        said = self._call("GetAllocatableResources", asked, messages.AllocatableResourcesResponse)
        return Allocatable(_cpus(said.cpu_ids), _devices(said.devices))

    def close(self) -> None:
        self._channel.close()

    def _call(self, method: str, request: Any, answer: Any) -> Any:
        try:
            if not stat.S_ISSOCK(self.socket.stat().st_mode):
                raise PodResourcesFailure("NO_SOCKET", f"{self.socket} is no socket")
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
    uids: Mapping[tuple[str, str], str] | None = None,
) -> KubeletState:
    """Return the kubelet's state with what it says itself in place of what its files say.

    `uids` tells the uid of a pod by namespace and name; else it is the one that holds the same CPUs by the files, else
    the pod stands as `namespace/name`. With the online CPUs, those that the kubelet cannot give out are the reserved
    ones, under the static policy.
    """
    state = state or KubeletState()
    known = uids or {}
    by_cpus = {(name, cpus): uid for uid, held in state.exclusive.items() for name, cpus in held.items() if uid}
    exclusive: dict[str, dict[str, str]] = {}
    devices: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {}
    for pod in pods:
        same = (by_cpus.get((one.name, one.cpus)) for one in pod.containers if one.cpus)
        key = known.get((pod.namespace, pod.name)) or next(filter(None, same), f"{pod.namespace}/{pod.name}")
        for container in pod.containers:
            if container.cpus:
                exclusive.setdefault(key, {})[container.name] = container.cpus
            for held in container.devices:
                mine = devices.setdefault(key, {}).setdefault(container.name, {})
                mine[held.resource] = (*mine.get(held.resource, ()), *held.ids)
    reserved = state.reserved_cpus
    if allocatable is not None and allocatable.cpus and online and state.cpu_manager_policy == "static":
        reserved = format_cpuset(parse_cpuset(online) - parse_cpuset(allocatable.cpus))
    return msgspec.structs.replace(
        state,
        reserved_cpus=reserved,
        exclusive=exclusive,
        devices=devices,
        sources=(*(source for source in state.sources if source != SOURCE), SOURCE),
    )


def _containers(listed: Iterable[Any]) -> tuple[ContainerResources, ...]:
    return tuple(ContainerResources(one.name, _cpus(one.cpu_ids), _devices(one.devices)) for one in listed)


def _cpus(ids: Iterable[int]) -> str:
    return format_cpuset(cpu for cpu in ids if 0 <= cpu <= MAX_CPU_ID)


def _devices(listed: Iterable[Any]) -> tuple[HeldDevices, ...]:
    return tuple(
        HeldDevices(one.resource_name, tuple(one.device_ids), tuple(node.ID for node in one.topology.nodes))
        for one in listed
    )
