"""Client of the machine's container runtime through CRI, which both containerd and CRI-O serve.

The agent changes the CPUs of a container only with `UpdateContainerResources`, which runtimes apply to cgroup v1 and v2
and store in their own state. A request contains only the CPUs, so other settings do not change.
Source: kubernetes/cri-api, runtime/v1.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec

from .rpc import cri_pb2
from .unix_channel import CallFailure, UnixChannel

MAX_BYTES = 16 * 1024 * 1024  # the kubelet's limit for CRI responses
_SERVICE = "runtime.v1.RuntimeService"
_CONTAINER_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)


class RuntimeFailure(CallFailure):
    """A call to the runtime failed.

    `gone` is true if the runtime does not have the container, `late` if the runtime did not respond in time.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.gone = code == "NOT_FOUND"
        self.late = code == "DEADLINE_EXCEEDED"


class Sandbox(msgspec.Struct, frozen=True):
    """Pod sandbox in the runtime, with the annotations of the pod; `created_at` is in nanoseconds since 1970."""

    id: str
    uid: str
    namespace: str
    name: str
    ready: bool
    created_at: int
    annotations: dict[str, str] = {}


class CriContainer(msgspec.Struct, frozen=True):
    """Running or created container; `name` is its name in the pod spec."""

    id: str
    sandbox_id: str
    name: str
    running: bool
    created_at: int


class ContainerStatus(msgspec.Struct, frozen=True):
    """Status of one container as reported by the runtime.

    `cpus` is empty if the container may use all CPUs, and None if the runtime does not report them. `pid` is the
    process ID of the container's first process.
    """

    cpus: str | None
    pid: int | None


class Runtime:
    """Connection to the runtime through a unix socket; its calls raise RuntimeFailure."""

    def __init__(self, socket: Path, *, timeout_seconds: float = 5.0) -> None:
        self.socket = socket
        self._channel = UnixChannel(
            socket, _SERVICE, RuntimeFailure, most_bytes=MAX_BYTES, timeout_seconds=timeout_seconds
        )

    def version(self) -> str:
        """Return the runtime's name and version."""
        response = self._channel.call("Version", cri_pb2.VersionRequest(version="v1"), cri_pb2.VersionResponse)
        return f"{response.runtime_name} {response.runtime_version}"

    def sandboxes(self) -> tuple[Sandbox, ...]:
        response = self._channel.call("ListPodSandbox", cri_pb2.ListPodSandboxRequest(), cri_pb2.ListPodSandboxResponse)
        return tuple(
            Sandbox(
                item.id,
                item.metadata.uid,
                item.metadata.namespace,
                item.metadata.name,
                item.state == cri_pb2.SANDBOX_READY,
                item.created_at,
                dict(item.annotations),
            )
            for item in response.items
        )

    def containers(self) -> tuple[CriContainer, ...]:
        """Return the running and created containers; exited containers do not use CPUs."""
        response = self._channel.call("ListContainers", cri_pb2.ListContainersRequest(), cri_pb2.ListContainersResponse)
        alive = {cri_pb2.CONTAINER_CREATED, cri_pb2.CONTAINER_RUNNING}
        return tuple(
            CriContainer(
                container.id,
                container.pod_sandbox_id,
                container.metadata.name,
                container.state == cri_pb2.CONTAINER_RUNNING,
                container.created_at,
            )
            for container in response.containers
            if container.state in alive and _CONTAINER_ID.fullmatch(container.id)
        )

    def status(self, container_id: str) -> ContainerStatus:
        """Return the runtime's status of a container."""
        request = cri_pb2.ContainerStatusRequest(container_id=container_id, verbose=True)
        response = self._channel.call("ContainerStatus", request, cri_pb2.ContainerStatusResponse)
        cpus, pid = _verbose(response.info.get("info", ""))
        if response.status.HasField("resources"):
            cpus = response.status.resources.linux.cpuset_cpus
        return ContainerStatus(cpus, pid)

    def set_cpus(self, container_id: str, cpus: str) -> None:
        """Restrict a container to these CPUs."""
        resources = cri_pb2.LinuxContainerResources(cpuset_cpus=cpus)
        request = cri_pb2.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
        self._channel.call("UpdateContainerResources", request, cri_pb2.UpdateContainerResourcesResponse)

    def close(self) -> None:
        self._channel.close()


def _verbose(text: str) -> tuple[str | None, int | None]:
    """Return the CPUs and the process ID from the verbose JSON details of a container's status."""
    try:
        details = json.loads(text) if text else {}
        pid = details.get("pid")
        linux = (details.get("runtimeSpec") or {}).get("linux") or {}
        cpus = ((linux.get("resources") or {}).get("cpu") or {}).get("cpus", "") if linux else None
    except (ValueError, AttributeError, RecursionError):
        return None, None
    return (
        cpus if isinstance(cpus, str) else None,
        pid if isinstance(pid, int) and not isinstance(pid, bool) and pid > 0 else None,
    )
