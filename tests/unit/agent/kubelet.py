"""The kubelet's side of device plugins: the registration socket, the device watcher, the caller of Allocate.

The fake behaves like the kubelet's device manager. At a start it drops the plugins and removes their sockets. It
chooses among healthy devices that no container holds, according to the plugin's preference. It admits pods one by one,
and records a container's devices after the response of the plugin.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from hetsched.agent.rpc import device_plugin_pb2 as api


class Refused(Exception):
    """Raised if a plugin rejects an allocation; a real kubelet then fails the pod."""


class Kubelet:
    """A device manager in a separate folder; its allocations survive a restart, like a kubelet's checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.given: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {}
        self.devices: dict[str, api.Device] = {}
        self.registered: list[api.RegisterRequest] = []
        self._server: grpc.Server | None = None
        self._channel: grpc.Channel | None = None
        self.shows = True

    def start(self) -> None:
        for socket in self.folder.glob("*.sock"):
            socket.unlink()
        self.devices = {}
        server = grpc.server(ThreadPoolExecutor(2))
        register = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=api.RegisterRequest.FromString,
            response_serializer=api.Empty.SerializeToString,
        )
        handlers = grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register})
        server.add_generic_rpc_handlers((handlers,))
        assert server.add_insecure_port(f"unix:{self.folder}/kubelet.sock")
        server.start()
        self._server = server

    def stop(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._server is not None:
            self._server.stop(0).wait()
        (self.folder / "kubelet.sock").unlink(missing_ok=True)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _register(self, request: api.RegisterRequest, _context: grpc.ServicerContext) -> api.Empty:
        self.registered.append(request)
        if self._channel is not None:
            self._channel.close()
        self._channel = grpc.insecure_channel(
            f"unix:{self.folder}/{request.endpoint}", options=(("grpc.default_authority", "localhost"),)
        )
        watch = self._channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=api.ListAndWatchResponse.FromString,
        )
        stream = watch(api.Empty())
        threading.Thread(target=self._follow, args=(stream,), daemon=True).start()
        return api.Empty()

    def _follow(self, stream: Any) -> None:
        try:
            for response in stream:
                self.devices = {device.ID: device for device in response.devices}
        except (grpc.RpcError, ValueError):
            pass  # the plugin or its channel is closed

    def ask(self, method: str, request: Any, answer: Any) -> Any:
        assert self._channel is not None
        call = self._channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return call(request, timeout=30)

    # -- pods ----------------------------------------------------------------------------------------------------------

    def held(self) -> dict[str, dict[str, dict[str, tuple[str, ...]]]] | None:
        """Return the allocations in the form of the podresources API."""
        return self.given if self.shows else None

    def admit(
        self, uid: str, *counts: int, insisting_on: tuple[str, ...] = (), init: int = 0
    ) -> list[api.ContainerAllocateResponse]:
        """Admit a pod whose containers request this many devices. Raises: Refused."""
        answers = []
        resource = self.registered[-1].resource_name
        reusable: list[str] = []
        if init:
            reusable = self._pick(init, insisting_on, ())
            answers.append(self._allocate(reusable))
        for place, count in enumerate(counts):
            slots = self._pick(count, insisting_on, tuple(reusable[:count]))
            reusable = reusable[count:]
            try:
                answers.append(self._allocate(slots))
            except Refused:
                self.given.pop(uid, None)
                raise
            self.given.setdefault(uid, {})[f"c{place}"] = {resource: tuple(slots)}
        return answers

    def end(self, uid: str) -> None:
        del self.given[uid]

    def _pick(self, count: int, insisting_on: tuple[str, ...], must: tuple[str, ...]) -> list[str]:
        used = {one for pod in self.given.values() for given in pod.values() for ids in given.values() for one in ids}
        healthy = sorted(name for name, device in self.devices.items() if device.health == "Healthy")
        free = [name for name in healthy if name not in used]
        if len(free) < count:
            raise Refused("too few devices")
        if insisting_on:
            return list(insisting_on)
        request = api.PreferredAllocationRequest()
        request.container_requests.add(available_deviceIDs=free, must_include_deviceIDs=must, allocation_size=count)
        preferred = self.ask("GetPreferredAllocation", request, api.PreferredAllocationResponse)
        chosen = list(preferred.container_responses[0].deviceIDs)
        assert len(set(chosen)) == count
        assert set(chosen) <= set(free)
        assert set(must) <= set(chosen)
        return chosen

    def _allocate(self, slots: list[str]) -> api.ContainerAllocateResponse:
        request = api.AllocateRequest()
        request.container_requests.add(devices_ids=slots)
        try:
            return self.ask("Allocate", request, api.AllocateResponse).container_responses[0]
        except grpc.RpcError as error:
            raise Refused(error.details()) from error  # type: ignore[attr-defined]


def eventually(true: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Wait until a condition is true."""
    until = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < until, "the condition did not hold in time"
        time.sleep(0.02)
    return found
