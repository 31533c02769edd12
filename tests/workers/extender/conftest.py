"""A live cluster in sync, and its extender with a fake API server in this thread."""

from __future__ import annotations

import pytest
from django.utils import timezone

from hetsched.contracts.objects.observed import Changes
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection, Sync
from hetsched.journal.audit import SYSTEM
from hetsched.placement import dispatch
from hetsched.placement.actions import apply_changes
from hetsched.scheduling.extender import binding
from hetsched.scheduling.extender.extender import Extender
from tests.builders import a_node
from tests.builtins import builtin_policies
from tests.workers.extender.scene import ApiServer, InThisThread


@pytest.fixture(autouse=True)
def woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "wake", lambda *_: None)


@pytest.fixture
def live(db: None) -> Cluster:
    """Return a live cluster in sync: `amd` and `risc` with 8 CPUs, `card` with two GPUs."""
    builtin_policies()
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made, follower_epoch=1)
    now = timezone.now()
    Sync.objects.create(cluster=made, resource="pods", epoch=1, synced_at=now, alive_at=now)
    nodes = [
        a_node("amd").arch("amd64").build(),
        a_node("card").arch("amd64").gpus(2).build(),
        a_node("risc").arch("riscv64").isa("rv64gcv").build(),
    ]
    apply_changes(made.pk, Changes(nodes=nodes), epoch=1)
    return made


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    server = ApiServer()
    monkeypatch.setattr(binding, "api_of", lambda _: server)
    return server


@pytest.fixture
def extender(live: Cluster, api: ApiServer) -> Extender:
    return Extender(live, 8, InThisThread())
