"""A fake podresources socket of a kubelet, with configurable responses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from hetsched.agent.rpc import podresources_pb2 as messages

Held = dict[str, tuple[str, ...]]


def container(name: str, cpus: tuple[int, ...] = (), devices: Held | None = None, zone: int | None = None) -> Any:
    """Return the allocation of a container; `devices` are IDs by resource."""
    near = None if zone is None else messages.TopologyInfo(nodes=[messages.NUMANode(ID=zone)])
    return messages.ContainerResources(
        name=name,
        cpu_ids=cpus,
        devices=[
            messages.ContainerDevices(resource_name=resource, device_ids=ids, topology=near)
            for resource, ids in (devices or {}).items()
        ],
    )


class FakeKubelet:
    """Serve `pods` and `cpus`; while the event `held` is cleared, accept calls without responding."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.pods: dict[tuple[str, str], list[Any]] = {}
        self.cpus: tuple[int, ...] = ()
        self.failure: grpc.StatusCode | None = None
        self.answering = threading.Event()
        self.answering.set()
        self._server: grpc.Server | None = None

    def start(self) -> FakeKubelet:
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        handlers = {
            "List": _handler(self._list, messages.ListPodResourcesRequest),
            "GetAllocatableResources": _handler(self._allocatable, messages.AllocatableResourcesRequest),
        }
        lister = grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers)
        self._server.add_generic_rpc_handlers((lister,))
        assert self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()
        return self

    def stop(self) -> None:
        self.answering.set()
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None

    def _list(self, _request: Any, context: grpc.ServicerContext) -> Any:
        self._may_answer(context)
        return messages.ListPodResourcesResponse(
            pod_resources=[
                messages.PodResources(namespace=namespace, name=name, containers=containers)
                for (namespace, name), containers in self.pods.items()
            ]
        )

    def _allocatable(self, _request: Any, context: grpc.ServicerContext) -> Any:
        self._may_answer(context)
        return messages.AllocatableResourcesResponse(cpu_ids=self.cpus)

    def _may_answer(self, context: grpc.ServicerContext) -> None:
        self.answering.wait(20)
        if self.failure is not None:
            context.abort(self.failure, "so it was told")


def _handler(answer: Callable[[Any, grpc.ServicerContext], Any], request: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        answer, request_deserializer=request.FromString, response_serializer=lambda said: said.SerializeToString()
    )
