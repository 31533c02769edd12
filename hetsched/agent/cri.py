"""The machine's container runtime, asked and told by its own interface: containerd and CRI-O speak the same.

Problem: the runtime restarts, hangs or answers with more than fits, and the agent must neither wait for ever nor die.
Rule: every call ends within its time and every answer within its size. After a lost connection the next call makes a
new one. A container's CPUs are changed by `UpdateContainerResources` alone, which runtimes apply to cgroup v1 and v2
and keep for their own record; nothing but the CPUs is named, so nothing else changes.
Source: kubernetes/cri-api, runtime/v1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import msgspec

from .rpc import cri_pb2

SOCKETS = ("/run/containerd/containerd.sock", "/run/crio/crio.sock")
MAX_BYTES = 16 * 1024 * 1024  # what the kubelet takes
_SERVICE = "/runtime.v1.RuntimeService/"
_CONTAINER_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class RuntimeFailure(Exception):
    """The runtime did not do what it was asked.

    `gone`: it knows no such container; `away`: it cannot be reached; `late`: it did not answer in time.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.gone = code == "NOT_FOUND"
        self.away = code in {"UNAVAILABLE", "CANCELLED"}
        self.late = code == "DEADLINE_EXCEEDED"


class Sandbox(msgspec.Struct, frozen=True):
    """A pod as the runtime knows it, with the annotations of its object. `created_at` is in nanoseconds."""

    id: str
    uid: str
    namespace: str
    name: str
    ready: bool
    created_at: int
    annotations: dict[str, str] = {}


class Container(msgspec.Struct, frozen=True):
    """A container that runs or is about to; `name` is the one it has in its pod."""

    id: str
    sandbox_id: str
    name: str
    running: bool
    created_at: int


class Told(msgspec.Struct, frozen=True):
    """What the runtime says of one container: its CPUs, empty for all, None where it does not tell, and its process."""

    cpus: str | None
    pid: int | None


class Runtime:
    """One connection to the runtime behind a unix socket."""

    def __init__(self, socket: Path, *, timeout_seconds: float = 5.0) -> None:
        self.socket = socket
        self._timeout_seconds = timeout_seconds
        self._channel: Any = None

    def version(self) -> str:
        """Return the runtime's name and version."""
        said = self._call("Version", cri_pb2.VersionRequest(version="v1"), cri_pb2.VersionResponse)
        return f"{said.runtime_name} {said.runtime_version}"

    def sandboxes(self) -> tuple[Sandbox, ...]:
        said = self._call("ListPodSandbox", cri_pb2.ListPodSandboxRequest(), cri_pb2.ListPodSandboxResponse)
        return tuple(
            Sandbox(
                one.id,
                one.metadata.uid,
                one.metadata.namespace,
                one.metadata.name,
                one.state == cri_pb2.SANDBOX_READY,
                one.created_at,
                dict(one.annotations),
            )
            for one in said.items
        )

    def containers(self) -> tuple[Container, ...]:
        """Return what runs or is about to; what ended holds no CPUs."""
        said = self._call("ListContainers", cri_pb2.ListContainersRequest(), cri_pb2.ListContainersResponse)
        alive = {cri_pb2.CONTAINER_CREATED, cri_pb2.CONTAINER_RUNNING}
        return tuple(
            Container(
                one.id, one.pod_sandbox_id, one.metadata.name, one.state == cri_pb2.CONTAINER_RUNNING, one.created_at
            )
            for one in said.containers
            if one.state in alive and _CONTAINER_ID.fullmatch(one.id)
        )

    def told(self, container_id: str) -> Told:
        """Return what the runtime says of a container."""
        request = cri_pb2.ContainerStatusRequest(container_id=container_id, verbose=True)
        said = self._call("ContainerStatus", request, cri_pb2.ContainerStatusResponse)
        cpus, pid = _verbose(said.info.get("info", ""))
        if said.status.HasField("resources"):
            cpus = said.status.resources.linux.cpuset_cpus
        return Told(cpus, pid)

    def set_cpus(self, container_id: str, cpus: str) -> None:
        """Have a container run on these CPUs and no others."""
        resources = cri_pb2.LinuxContainerResources(cpuset_cpus=cpus)
        request = cri_pb2.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
        self._call("UpdateContainerResources", request, cri_pb2.UpdateContainerResourcesResponse)

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _call(self, method: str, request: Any, answer: Any) -> Any:
        """Return the runtime's answer. Raises: RuntimeFailure."""
        if self._channel is None:
            self._channel = grpc.insecure_channel(f"unix:{self.socket}", options=_OPTIONS)
        call: Callable[..., Any] = self._channel.unary_unary(
            _SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            return call(request, timeout=self._timeout_seconds)
        except grpc.RpcError as error:
            failure = RuntimeFailure(error.code().name, str(error.details() or "")[:300])
            if failure.away:
                self.close()
            raise failure from None


def _verbose(text: str) -> tuple[str | None, int | None]:
    """Return the CPUs and the process that a runtime names among the details that it keeps for people."""
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
