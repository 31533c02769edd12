"""Watch of pods in cluster benchmarks: bindings, scheduling attempts, and deletion of terminating pods."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any, cast

from hetsched.adapters.kubernetes.api import Api, Resource
from hetsched.cli.bench.cluster_objects import PodWatch


def pod(name: str, node: str = "", *, terminating: bool = False, attempted: bool = False) -> dict[str, Any]:
    meta = {"name": name, "namespace": "a", "resourceVersion": "1"}
    if terminating:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status = {"conditions": [{"type": "PodScheduled", "status": "False"}]} if attempted else {}
    return {"metadata": meta, "spec": {"nodeName": node} if node else {}, "status": status}


class StubApi:
    """API server with these pods and watches without events."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.deleted: list[str] = []
        self._pods = pods

    def list_pages(self, resource: Resource) -> Iterator[tuple[list[bytes], str]]:
        yield [json.dumps(one).encode() for one in self._pods], "1"

    @contextlib.contextmanager
    def stream(self, *_: Any, **__: Any) -> Iterator[Iterator[bytes]]:
        time.sleep(0.01)
        yield iter(())

    def send(self, method: str, path: str, **_: Any) -> bytes:
        assert method == "DELETE"
        self.deleted.append(path)
        return b""


def watch(server: StubApi, *, evict: bool = False) -> PodWatch:
    return PodWatch(cast(Api, server), evict=evict)


def test_wait_returns_unbound_pods() -> None:
    with watch(StubApi(pod("bound", "n1"), pod("pending"))) as pods:
        assert pods.wait_for(["a/bound"]) == set()
        assert pods.wait_for(["a/bound", "a/pending"], patience=0.1) == {"a/pending"}


def test_attempted_pods_have_a_condition() -> None:
    with watch(StubApi(pod("tried", attempted=True), pod("pending"))) as pods:
        assert pods.wait_for(["a/tried", "a/pending"], attempted=True, patience=0.3) == {"a/pending"}


def test_wait_ends_with_the_scheduler() -> None:
    with watch(StubApi()) as pods:
        assert pods.wait_for(["a/pending"], ended=lambda: True) == {"a/pending"}


def test_only_bound_terminating_pods_are_deleted_at_once() -> None:
    server = StubApi(pod("evicted", "n1", terminating=True), pod("pending", terminating=True), pod("bound", "n1"))
    with watch(server, evict=True):
        until = time.monotonic() + 5
        while not server.deleted and time.monotonic() < until:
            time.sleep(0.01)
    assert server.deleted == ["/api/v1/namespaces/a/pods/evicted"]
