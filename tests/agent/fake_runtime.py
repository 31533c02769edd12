"""A fake container runtime on a machine that is simulated by files, with any number of CPUs and cgroup v1 or v2.

It responds to the agent's calls through real gRPC on a unix socket, and updates the cgroup file of each container as a
kernel would. `fail` makes calls fail by method, or by method and container. `written` lists the writes in order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc

from hetsched.agent.rpc import cri_pb2 as cri
from hetsched.contracts.cpuset import format_cpuset, parse_cpuset

ALLOCATION = "hetsched.io/allocation"


class FakeRuntime:
    """One runtime, and the files of its machine below `root`. `cgroup` is the version (1 or 2); with 0 no cgroup files
    are created.
    """

    def __init__(self, folder: Path, *, cpus: str = "0-63", cgroup: int = 2) -> None:
        self.root, self.socket = folder / "root", folder / "cri.sock"
        self.cpus, self.cgroup = cpus, cgroup
        self.sandboxes: dict[str, Any] = {}
        self.containers: dict[str, Any] = {}
        self.sets: dict[str, str] = {}
        self.written: list[tuple[str, str]] = []
        self.fail: dict[str, grpc.StatusCode] = {}
        self.on_write: Callable[[], None] = lambda: None
        self.calls = 0
        self._numbers = itertools.count(1)
        self._server: Any = None
        for path in ("sys/devices/system/cpu", "sys/devices/system/node", "proc"):
            (self.root / path).mkdir(parents=True)
        (self.root / "sys/devices/system/cpu/online").write_text(f"{cpus}\n")
        if cgroup == 2:
            (self.root / "sys/fs/cgroup").mkdir(parents=True)
            (self.root / "sys/fs/cgroup/cgroup.controllers").write_text("cpuset cpu memory\n")

    def start(self) -> None:
        handlers = {
            "Version": (self._version, cri.VersionRequest),
            "ListPodSandbox": (self._list_sandboxes, cri.ListPodSandboxRequest),
            "ListContainers": (self._list_containers, cri.ListContainersRequest),
            "ContainerStatus": (self._status, cri.ContainerStatusRequest),
            "UpdateContainerResources": (self._update, cri.UpdateContainerResourcesRequest),
        }
        self._server = grpc.server(ThreadPoolExecutor(4))
        methods = {name: self._handler(name, *handler) for name, handler in handlers.items()}
        generic = grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", methods)
        self._server.add_generic_rpc_handlers((generic,))
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def zone(self, number: int, cpus: str) -> None:
        folder = self.root / f"sys/devices/system/node/node{number}"
        folder.mkdir()
        (folder / "cpulist").write_text(f"{cpus}\n")

    def pod(self, uid: str, allocation: str | None = None, *, containers: tuple[str, ...] = ("main",)) -> list[str]:
        """Run a pod and return the IDs of its containers."""
        number = next(self._numbers)
        annotations = {} if allocation is None else {ALLOCATION: allocation}
        metadata = cri.PodSandboxMetadata(name=uid, uid=uid, namespace="default")
        self.sandboxes[uid] = cri.PodSandbox(
            id=f"sandbox-{number}", metadata=metadata, created_at=number, annotations=annotations
        )
        return [self.container(uid, name) for name in containers]

    def container(self, uid: str, name: str = "main", *, running: bool = True) -> str:
        number = next(self._numbers)
        one = sha256(f"{uid}/{name}/{number}".encode()).hexdigest()
        self.containers[one] = cri.Container(
            id=one,
            pod_sandbox_id=self.sandboxes[uid].id,
            metadata=cri.ContainerMetadata(name=name),
            state=cri.CONTAINER_RUNNING if running else cri.CONTAINER_CREATED,
            created_at=number,
        )
        self.sets[one] = ""
        if running:
            self._show(one)
        return one

    def end(self, uid: str) -> None:
        sandbox = self.sandboxes.pop(uid)
        for item in [container.id for container in self.containers.values() if container.pod_sandbox_id == sandbox.id]:
            self.end_container(item)

    def end_container(self, one: str) -> None:
        del self.containers[one], self.sets[one]
        if self.cgroup and self._file(one).exists():
            self._file(one).unlink()

    def put(self, one: str, cpus: str) -> None:
        """Move a container to other CPUs, as another program would."""
        self.sets[one] = cpus
        self._show(one)

    def on(self, one: str) -> str:
        """Return the CPUs of a container."""
        return self.sets[one] or self.cpus

    def _file(self, one: str) -> Path:
        base = "sys/fs/cgroup" if self.cgroup == 2 else "sys/fs/cgroup/cpuset"
        name = "cpuset.cpus.effective" if self.cgroup == 2 else "cpuset.cpus"
        return self.root / base / "kubepods" / f"cri-containerd-{one}.scope" / name

    def _show(self, one: str) -> None:
        if not self.cgroup:
            return
        process = self.root / "proc" / str(self._pid(one))
        process.mkdir(exist_ok=True)
        line = "0::" if self.cgroup == 2 else "3:cpuset,cpu:"
        (process / "cgroup").write_text(f"12:pids:/other\n{line}/kubepods/cri-containerd-{one}.scope\n")
        file = self._file(one)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(format_cpuset(parse_cpuset(self.on(one))) + "\n")

    def _pid(self, one: str) -> int:
        return 1000 + int(self.containers[one].created_at)

    def _handler(self, name: str, answer: Callable[[Any, Any], Any], request: Any) -> Any:
        def handle(asked: Any, context: Any) -> Any:
            self.calls += 1
            for failing in (name, f"{name} {getattr(asked, 'container_id', '')}"):
                if failing in self.fail:
                    context.abort(self.fail[failing], f"{failing} fails")
            return answer(asked, context)

        return grpc.unary_unary_rpc_method_handler(
            handle, request_deserializer=request.FromString, response_serializer=lambda said: said.SerializeToString()
        )

    def _version(self, asked: Any, context: Any) -> Any:
        return cri.VersionResponse(runtime_name="fake", runtime_version="v1")

    def _list_sandboxes(self, asked: Any, context: Any) -> Any:
        return cri.ListPodSandboxResponse(items=self.sandboxes.values())

    def _list_containers(self, asked: Any, context: Any) -> Any:
        return cri.ListContainersResponse(containers=self.containers.values())

    def _status(self, asked: Any, context: Any) -> Any:
        one = self._known(asked.container_id, context)
        running = self.containers[one].state == cri.CONTAINER_RUNNING
        status = cri.ContainerStatus(id=one, state=self.containers[one].state)
        status.resources.linux.cpuset_cpus = self.sets[one]
        return cri.ContainerStatusResponse(
            status=status, info={"info": f'{{"pid":{self._pid(one) if running else 0}}}'}
        )

    def _update(self, asked: Any, context: Any) -> Any:
        one = self._known(asked.container_id, context)
        cpus = asked.linux.cpuset_cpus
        if not parse_cpuset(cpus) or not parse_cpuset(cpus) <= parse_cpuset(self.cpus):
            context.abort(grpc.StatusCode.UNKNOWN, f"cpuset {cpus!r} is not possible")
        self.put(one, cpus) if self.containers[one].state == cri.CONTAINER_RUNNING else self.sets.update({one: cpus})
        self.written.append((one, cpus))
        self.on_write()
        return cri.UpdateContainerResourcesResponse()

    def _known(self, one: str, context: Any) -> str:
        if one not in self.containers:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such container")
        return one
