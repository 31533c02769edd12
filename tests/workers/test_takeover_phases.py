"""The informer logs the durations of its takeover, and the time of its first decision."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from hetsched.adapters.kubernetes.reflector import Synced
from hetsched.adapters.kubernetes.resources import NODES, PODS
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.scheduling.informer import Informer
from hetsched.scheduling.leases import Lease, following
from hetsched.scheduling.standby import TakeoverPhases

pytestmark = pytest.mark.django_db


@pytest.fixture
def lease() -> Lease:
    cluster = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=cluster)
    taken = following.take(cluster.pk, "test")
    assert taken is not None
    return taken


def test_informer_logs_the_phases_until_its_first_write_once(lease: Lease) -> None:
    nothing: Any = None
    phases = TakeoverPhases(lease)
    phases.end("election")
    informer = Informer(lease, nothing, threading.Event(), kinds=[NODES, PODS], phases=phases)
    for kind in (NODES, PODS):
        informer.watches.events.put((kind, Synced(0)))
    with capture_logs() as logs:
        informer.iterate()
        informer.iterate()
    (entry,) = [entry for entry in logs if entry["event"] == "informer took over"]
    assert list(entry["phases"]) == ["election", "sync", "comparison with the rows", "first write"]
    assert sum(entry["phases"].values()) == pytest.approx(entry["seconds"], abs=0.05)
    assert (entry["cluster"], entry["epoch"], entry["pods"]) == (lease.cluster_id, lease.epoch, 0)


def test_first_decision_is_logged_once(lease: Lease) -> None:
    phases = TakeoverPhases(lease)
    with capture_logs() as logs:
        phases.note_decision()
        phases.note_decision()
    assert [entry["event"] for entry in logs] == ["informer made its first decision"]
