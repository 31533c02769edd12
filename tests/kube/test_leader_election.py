"""Two installations with separate databases: only the holder of the cluster's Lease decides there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from hetsched.adapters.kubernetes import leader_lease
from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
from hetsched.adapters.kubernetes.leader_lease import DURATION_SECONDS, Election
from hetsched.adapters.kubernetes.resources import LEASES
from hetsched.contracts.errors import InputError
from hetsched.inventory.models import Cluster
from hetsched.inventory.node_events import is_synced
from hetsched.scheduling import leader_election
from hetsched.scheduling.informer import Informer
from hetsched.scheduling.leases import following
from tests.kube import access
from tests.kube.control_plane import ControlPlane
from tests.kube.scene import eventually

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
EPOCH = 3


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _no_lease(api: Api) -> Iterator[None]:
    yield
    with suppress(ApiFailure):
        api.send("DELETE", LEASES.path(namespace=leader_lease.NAMESPACE, name=leader_lease.NAME))


def test_second_installation_learns_the_holder(api: Api) -> None:
    first, other = Election("first"), Election("other")
    assert first.acquire(api, EPOCH) == ""
    assert other.acquire(api, EPOCH) == f"first/{EPOCH}"
    assert (first.is_held, other.is_held) == (True, False)


def test_expired_leader_stops_before_another_may_acquire_the_lease(api: Api) -> None:
    mine, theirs = Clock(), Clock()
    first, other = Election("first", clock=mine), Election("other", clock=theirs)
    first.acquire(api, EPOCH)
    assert other.acquire(api, EPOCH)
    # The other one has to see an unchanged record for its whole duration, by its own clock.
    theirs.now += DURATION_SECONDS
    assert other.acquire(api, EPOCH)
    mine.now += DURATION_SECONDS
    assert not first.is_held
    theirs.now += 0.1
    assert other.acquire(api, EPOCH) == ""
    assert first.acquire(api, EPOCH) == f"other/{EPOCH}"


def test_renewal_is_recognised(api: Api) -> None:
    theirs = Clock()
    first, other = Election("first"), Election("other", clock=theirs)
    first.acquire(api, EPOCH)
    other.acquire(api, EPOCH)
    theirs.now += DURATION_SECONDS + 1
    first.acquire(api, EPOCH)
    assert other.acquire(api, EPOCH) == f"first/{EPOCH}"


def test_released_lease_is_acquired_without_delay(api: Api) -> None:
    first, other = Election("first"), Election("other")
    first.acquire(api, EPOCH)
    first.step_down(api, EPOCH)
    assert not first.is_held
    assert other.acquire(api, EPOCH) == ""


def test_lease_that_was_released_during_the_acquisition_is_acquired(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The previous process of the installation releases the Lease between the read and the write of its successor."""
    first, next_process = Election("first"), Election("first")
    first.acquire(api, EPOCH)
    get, reads = api.get, []

    def get_before_release(path: str) -> bytes:
        body: bytes = get(path)
        reads.append(path)
        if len(reads) == 1:
            monkeypatch.setattr(api, "get", get)
            first.step_down(api, EPOCH)
            monkeypatch.setattr(api, "get", get_before_release)
        return body

    monkeypatch.setattr(api, "get", get_before_release)
    assert next_process.acquire(api, EPOCH + 1) == ""
    assert len(reads) == 2
    assert next_process.is_held


def test_later_process_takes_over_and_a_restored_copy_does_not(api: Api) -> None:
    assert Election("first").acquire(api, EPOCH) == ""
    assert Election("first").acquire(api, EPOCH + 1) == ""
    # A database that was restored from a backup knows only an earlier epoch.
    assert Election("first").acquire(api, EPOCH) == f"first/{EPOCH + 1}"


def test_shipped_role_suffices_for_leader_election(plane: ControlPlane) -> None:
    with access.granted(plane) as kubeconfig:
        ours = Api(from_kubeconfig(kubeconfig))
        election = Election("ours")
        assert election.acquire(ours, EPOCH) == ""  # created
        assert election.acquire(ours, EPOCH) == ""  # renewed


def test_informer_stops_deciding_after_losing_the_lease(
    api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_election, "_elections", {})
    monkeypatch.setattr(leader_election, "RENEW_SECONDS", 3600)  # renewed by hand below
    lease = following.take(cluster.pk, "test")
    assert lease is not None
    with leader_election.leadership(cluster, api, lease, threading.Event()) as (_over, is_leader):
        follower = Informer(lease, api, threading.Event(), is_leader=is_leader)
        follower.start()
        eventually(follower, lambda: is_synced(cluster))
        stranger = Election("stranger", clock=(clock := Clock()))
        stranger.acquire(api, 1)
        clock.now += DURATION_SECONDS + 1
        assert stranger.acquire(api, 1) == ""
        assert leader_election._elections[cluster.pk].acquire(api, lease.epoch) == "stranger/1"
        monkeypatch.setattr(leader_election._elections[cluster.pk], "_until", 0.0)
        follower._write_sync()
        assert not is_synced(cluster)
        follower.ended.set()
    with (
        pytest.raises(InputError, match="another installation of hetsched is the leader for live: stranger/1"),
        leader_election.leadership(cluster, api, lease, threading.Event()),
    ):
        pass
