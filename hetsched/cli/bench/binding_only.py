"""Smallest possible scheduler: binds each pod to the next node, and does nothing else.

`hetsched bench cluster` measures it in addition to the schedulers. It decides nothing, stores nothing and writes no
events, so its figures are the limit of the API server, etcd and the watch of the client on the same machine.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import msgspec

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
from hetsched.adapters.kubernetes.reflector import Reflector, Upserted
from hetsched.adapters.kubernetes.resources import NODES, PODS

from .cluster_objects import AT_ONCE

NAME = "binding-only"


class _PendingMeta(msgspec.Struct):
    name: str
    namespace: str = ""


class _PendingSpec(msgspec.Struct):
    scheduler: str = msgspec.field(default="", name="schedulerName")
    node: str = msgspec.field(default="", name="nodeName")


class _PendingPod(msgspec.Struct):
    metadata: _PendingMeta
    spec: _PendingSpec = msgspec.field(default_factory=_PendingSpec)


class _TargetNode(msgspec.Struct):
    metadata: _PendingMeta


_pod = msgspec.json.Decoder(_PendingPod)
_node = msgspec.json.Decoder(_TargetNode)


def bind_all(kubeconfig: Path) -> None:
    """Bind the pods of this scheduler until the process is interrupted. Raises: ApiFailure."""
    api = Api(from_kubeconfig(json.loads(kubeconfig.read_text())), agent=NAME)
    nodes = cycle([_node.decode(body).metadata.name for body in api.list_all(NODES)[0]])
    begun: set[str] = set()

    def bind(pod: _PendingMeta, node: str) -> None:
        body = {"metadata": {"name": pod.name}, "target": {"kind": "Node", "name": node}}
        path = PODS.path(namespace=pod.namespace, name=pod.name) + "/binding"
        api.send("POST", path, json.dumps(body).encode())

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for event in Reflector(api, PODS, sleep=lambda _: None).events():
            if not isinstance(event, Upserted) or event.key in begun:
                continue
            pod = _pod.decode(event.body)
            if pod.spec.scheduler == NAME and not pod.spec.node:
                begun.add(event.key)
                threads.submit(bind, pod.metadata, next(nodes))


if __name__ == "__main__":
    bind_all(Path(sys.argv[1]))
