"""A fake API server, and shortcuts for a scheduler's requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from hetsched.adapters.kubernetes.api import ApiFailure
from hetsched.adapters.kubernetes.extender_messages import Args, BindingArgs, read_args, read_binding

Json = dict[str, Any]
BINDING = "/binding"


class ApiServer:
    """Store pods, and bind them or reject the binding."""

    def __init__(self) -> None:
        self.pods: dict[str, Json] = {}
        self.bound: list[Json] = []
        self.refuses: ApiFailure | None = None

    def get(self, path: str) -> bytes:
        name = path.rpartition("/")[2]
        if name not in self.pods:
            raise ApiFailure(404, "NotFound", f"no pod {name}")
        return json.dumps(self.pods[name]).encode()

    def send(self, method: str, path: str, body: bytes = b"", query: Any = None, **_: Any) -> bytes:
        assert (method, path.endswith(BINDING)) == ("POST", True)
        if query:  # a dry run with a wrong UID
            raise ApiFailure(409, "Conflict", "another uid")
        if self.refuses is not None:
            raise self.refuses
        binding = json.loads(body)
        self.bound.append(binding)
        self.pods[binding["metadata"]["name"]]["spec"]["nodeName"] = binding["target"]["name"]
        return b"{}"


class InThisThread(Executor):
    def submit(self, act: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(act(*arguments, **more))
        except Exception as error:
            future.set_exception(error)
        return future


def a_plain_pod(name: str, cpu: str = "1", **more: Any) -> Json:
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", **more.pop("metadata", {})}
    requests = {"cpu": cpu, "memory": "1Gi"}
    container = {"name": "main", "image": "busybox", "resources": {"requests": requests, "limits": requests}}
    return {"metadata": meta, "spec": {"schedulerName": "other", "containers": [container], **more}}


def asked(pod: Json, *names: str) -> Args:
    return read_args(json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode())


def to(pod: Json, node: str) -> BindingArgs:
    meta = pod["metadata"]
    body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
    return read_binding(json.dumps(body).encode())
