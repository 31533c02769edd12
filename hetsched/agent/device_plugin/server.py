"""Serve a device plugin on its socket, and register it again after each kubelet restart.

A kubelet that restarts removes every socket in its folder and does not keep registrations. `tick` is called about
every second. If the kubelet's socket does not exist, the plugin is not served. If the kubelet's socket was replaced, or
the plugin's socket was removed, the plugin's socket is created and registered again; the next tick retries a failed
registration. Registration is the last step, because the kubelet calls a registered plugin immediately.
Source: kubernetes.io "Device Plugins": handling kubelet restarts.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from ..rpc import device_plugin_pb2 as api
from .plugin import CardPlugin

VERSION = "v1beta1"
KUBELET = "kubelet.sock"
_SECONDS = 5.0
_THREADS = 4
_SERVICE = "v1beta1.DevicePlugin"


class PluginServer:
    """One plugin, served on its socket in the kubelet's folder."""

    def __init__(self, plugin: CardPlugin, directory: Path) -> None:
        self.plugin = plugin
        self.problem = ""
        self._directory = directory
        self._socket = directory / f"hetsched-{plugin.resource.replace('/', '-')}.sock"
        self._server: grpc.Server | None = None
        self._kubelet: tuple[int, int] | None = None

    def tick(self) -> bool:
        """Serve and register the plugin if necessary; return whether its last registration is still valid."""
        kubelet = _identity(self._directory / KUBELET)
        if kubelet is None:
            self.problem = f"{self._directory / KUBELET} does not exist"
            self._shut_down()
            return False
        if self._server is not None and kubelet == self._kubelet and _identity(self._socket) is not None:
            return True
        self._shut_down()
        try:
            self._serve()
            self._register()
        except (grpc.RpcError, OSError, RuntimeError) as error:
            detail = error.details() if isinstance(error, grpc.Call) else error
            self.problem = f"the kubelet rejected the registration of {self.plugin.resource}: {detail}"
            self._shut_down()
            return False
        self.problem, self._kubelet = "", kubelet
        return True

    def stop(self) -> None:
        self.plugin.stop()
        self._shut_down()

    def _serve(self) -> None:
        self._socket.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(_THREADS, thread_name_prefix="cards"))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, _handlers(self.plugin)),))
        if not server.add_insecure_port(f"unix:{self._socket}"):
            raise RuntimeError(f"{self._socket} cannot be opened")
        server.start()
        self._server = server

    def _register(self) -> None:
        request = api.RegisterRequest(
            version=VERSION,
            endpoint=self._socket.name,
            resource_name=self.plugin.resource,
            options=self.plugin.options(),
        )
        with grpc.insecure_channel(
            f"unix:{self._directory / KUBELET}", options=(("grpc.default_authority", "localhost"),)
        ) as channel:
            register = channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=api.RegisterRequest.SerializeToString,
                response_deserializer=api.Empty.FromString,
            )
            register(request, timeout=_SECONDS, wait_for_ready=True)

    def _shut_down(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait(_SECONDS)
            self._server = None
        with contextlib.suppress(OSError):
            self._socket.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the identity of a socket, which changes if the socket is created again under the same name."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _handlers(plugin: CardPlugin) -> dict[str, grpc.RpcMethodHandler]:
    def unary(answer: Any, request: Any, response: Any) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=request.FromString, response_serializer=response.SerializeToString
        )

    return {
        "GetDevicePluginOptions": unary(plugin.options, api.Empty, api.DevicePluginOptions),
        "GetPreferredAllocation": unary(
            plugin.preferred, api.PreferredAllocationRequest, api.PreferredAllocationResponse
        ),
        "Allocate": unary(plugin.allocate, api.AllocateRequest, api.AllocateResponse),
        "PreStartContainer": unary(plugin.pre_start, api.PreStartContainerRequest, api.PreStartContainerResponse),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(
            plugin.list_and_watch,
            request_deserializer=api.Empty.FromString,
            response_serializer=api.ListAndWatchResponse.SerializeToString,
        ),
    }
