"""The informer logs the durations of its takeover, and the time of its first decision."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from hetsched.adapters.kubernetes.reflector import Synced
from hetsched.adapters.kubernetes.resources import NODES, PODS
from hetsched.contracts.errors import InputError
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.scheduling import informer_process
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


def test_connection_is_the_first_phase(lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program for the credentials of the connection may take seconds."""
    recorded: dict[str, float] = {}

    def slow_api_of(_: Cluster) -> Any:
        time.sleep(0.05)

    def stop_at_identity(*_: Any) -> None:
        raise InputError("AnotherCluster", "the takeover ends here")

    def with_recorded_phases(lease: Lease) -> TakeoverPhases:
        phases = TakeoverPhases(lease)
        phases._seconds = recorded
        return phases

    monkeypatch.setattr(informer_process, "check_identity", stop_at_identity)
    monkeypatch.setattr(informer_process, "TakeoverPhases", with_recorded_phases)
    cluster = Cluster.objects.get(pk=lease.cluster_id)
    watch = informer_process._ClusterWatch(cluster, lease, "test", slow_api_of, threading.Event())
    with pytest.raises(InputError, match="the takeover ends here"):
        watch._lead(lease)
    assert list(recorded) == ["connection"]
    assert recorded["connection"] >= 0.05


def test_first_decision_is_logged_once(lease: Lease) -> None:
    phases = TakeoverPhases(lease)
    with capture_logs() as logs:
        phases.note_decision()
        phases.note_decision()
    assert [entry["event"] for entry in logs] == ["informer made its first decision"]
