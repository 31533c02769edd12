"""A pending pod passes few modules between its watch event and its binding."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.pods import binding
from hetsched.adapters.kubernetes.resources import NODES, PODS
from hetsched.engine.framework.cycle import Scheduler
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.placement.models import Pod
from hetsched.scheduling.informer import Informer
from hetsched.scheduling.informer_host import InformerHost
from hetsched.scheduling.leases import following
from tests.builtins import builtin_policies
from tests.call_stacks import Stacks, stacks_at_writes
from tests.sqlite import needs_sqlite

MOST_MODULES = 22
NODE = {
    "metadata": {"name": "n1", "uid": "n", "resourceVersion": "1"},
    "status": {
        "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
POD = {
    "metadata": {"name": "p", "namespace": "default", "uid": "u", "resourceVersion": "2"},
    "spec": {"schedulerName": "hetsched", "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]},
}


class Server(Api):
    """An API server with one node. Once `arrived` is set its watch reports a pod, which it then binds."""

    def __init__(self) -> None:
        self.arrived, self.bound = threading.Event(), threading.Event()
        self.stacks = Stacks()
        self._agent, self._reads = "test", False
        self._configuration = SimpleNamespace(get_api_key_with_prefix=lambda *_, **__: "", cert_file=None)
        self._certificate = None
        self._count_call = lambda verb, status: None
        self.wire = SimpleNamespace(call=self._answer, take_idle=lambda: None)

    def _answer(self, method: str, path: str, *_: Any, **__: Any) -> Any:
        if method == "POST" and path.endswith("/binding"):
            self.stacks.note()
            self.bound.set()
            return SimpleNamespace(status=201, data=b"{}")
        if path.endswith("/pods/p"):
            return SimpleNamespace(status=200, data=json.dumps(POD).encode())
        items = [NODE] if path.startswith(NODES.path()) else []
        data = json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()
        return SimpleNamespace(status=200, data=data)

    @contextmanager
    def stream(self, path: str, query: Any, *, quiet_seconds: float) -> Iterator[Iterator[bytes]]:
        yield self._lines(path)

    def _lines(self, path: str) -> Iterator[bytes]:
        self.arrived.wait(60)
        if path == PODS.path():
            self.stacks.note()
            yield json.dumps({"type": "ADDED", "object": POD}).encode()
        self.bound.wait(60)
        raise binding.ApiFailure(500, "InternalError", "the server ends")


@needs_sqlite
@pytest.mark.django_db(transaction=True)
def test_pending_pod_reaches_its_binding_through_few_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    builtin_policies()
    cluster = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=cluster)
    monkeypatch.setattr(binding, "refuses_wrong_uids", lambda *_: True)
    lease = following.take(cluster.pk, "test")
    assert lease is not None
    server = Server()
    host = InformerHost(cluster, server)
    informer = Informer(lease, server, threading.Event(), kinds=[NODES, PODS], host=host)
    informer.start()
    until = time.monotonic() + 60
    try:
        while not (informer.has_applied and host._lease):
            assert time.monotonic() < until
            informer.iterate()
        schedule = Scheduler.schedule

        def decided(self: Scheduler, *arguments: Any, **named: Any) -> Any:
            server.stacks.note()
            return schedule(self, *arguments, **named)

        monkeypatch.setattr(Scheduler, "schedule", decided)
        # Lease renewals and sync states, which are written at intervals, are not on the way.
        informer._lease_checked_at = informer._reported_at = host._lease_checked_at = float("inf")
        with stacks_at_writes(server.stacks):
            server.arrived.set()
            while not server.bound.is_set():
                assert time.monotonic() < until
                informer.iterate()
    finally:
        informer.ended.set()
        server.arrived.set()
        server.bound.set()
        host.close()
    assert Pod.objects.get().state == "bound"
    found = server.stacks.modules
    assert {"hetsched/scheduling/scheduling_cycle.py", "hetsched/scheduling/binding_cycle.py"} <= found.keys()
    assert len(found) <= MOST_MODULES, "\n".join(found)
