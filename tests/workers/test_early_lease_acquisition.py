"""The deciding informer process acquires the lease before it writes the first list, ahead of any worker."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hetsched.adapters.kubernetes.reflector import Synced
from hetsched.adapters.kubernetes.resources import NODES, PODS
from hetsched.contracts.objects.observed import Changes
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.scheduling import informer
from hetsched.scheduling.informer_host import InformerHost
from hetsched.scheduling.leases import following, leading

pytestmark = pytest.mark.django_db


def leads_at_the_first_write(
    cluster: Cluster, live: InformerHost | None, monkeypatch: pytest.MonkeyPatch
) -> list[bool]:
    led: list[bool] = []

    def write(self: informer.Informer, changes: Changes) -> None:
        led.append(leading.is_held(cluster.pk))

    monkeypatch.setattr(informer.Informer, "_write", write)
    lease = following.take(cluster.pk, "test")
    nothing: Any = None
    assert lease is not None
    one = informer.Informer(lease, nothing, threading.Event(), kinds=[NODES, PODS], host=live)
    for kind in (NODES, PODS):
        one.watches.events.put((kind, Synced(0)))
    one.iterate()
    return led


@pytest.fixture
def cluster() -> Cluster:
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made)
    return made


def test_deciding_informer_acquires_the_lease(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    live = InformerHost(cluster, nothing)
    try:
        assert leads_at_the_first_write(cluster, live, monkeypatch) == [True]
    finally:
        live.close()


def test_following_informer_leaves_the_lease_to_workers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert leads_at_the_first_write(cluster, None, monkeypatch) == [False]
