"""Two of each process on one database: if the leader dies or sleeps, the standby takes over, exactly once.

Real here: kube-apiserver, PostgreSQL, Redis, processes and signals. HETSCHED_TEST_ALLOCATIONS sets the number of pods
that are bound before the leader stops (a multiple of 50).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from hetsched.adapters.kubernetes.api import Api
from tests.fault_table import Faults
from tests.kube import mixed_fleet
from tests.kube.control_plane import ControlPlane
from tests.kube.live import PACE, count_faults, listed, node_of, scheduling, start_watch
from tests.kube.scene import empty_cluster
from tests.system.plane import Plane
from tests.system.processes import Process, wait_until

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.needs("etcd", "kube-apiserver", "postgres", "redis-server"),
    pytest.mark.timeout(1200),
]
ALLOCATIONS = int(os.environ.get("HETSCHED_TEST_ALLOCATIONS", "100"))
LOT = 50
NODES = 200
PATIENCE_SECONDS = 180


class Redundant:
    """A control plane with a standby of each process, and the number of its pods so far."""

    def __init__(self, api: Api, ours: Plane) -> None:
        self.api, self.ours, self.pods = api, ours, ALLOCATIONS
        mixed_fleet.create_fleet(api, NODES)
        mixed_fleet.create_pods(api, ALLOCATIONS, NODES)
        self.wait_for_all()

    def create_more(self) -> None:
        self.pods += LOT
        mixed_fleet.create(self.api, list(mixed_fleet.pods(self.pods, NODES))[-LOT:], mixed_fleet.PODS_PATH)

    def wait_for_all(self) -> None:
        _wait_for(self.api, self.ours, mixed_fleet.bindable(self.pods))

    def count(self, faults: Faults) -> None:
        faults.size = f"{self.pods} pods"
        wanted = mixed_fleet.bindable(self.pods)
        count_faults(self.api, self.ours, faults, wanted, where="failover", seconds=PATIENCE_SECONDS)

    def kill_leader(self) -> None:
        """Kill the process that runs the informer; another standby starts."""
        start_watch(self.ours)
        _follower(self.ours).kill_group()


@pytest.fixture(scope="module")
def redundant(plane: ControlPlane) -> Iterator[Redundant]:
    """Yield a control plane after its first allocations."""
    api = empty_cluster(plane)
    with scheduling(plane, **PACE) as ours:
        start_watch(ours)
        ours.start_worker()
        yield Redundant(api, ours)


def test_killed_leader_is_replaced_without_double_reservations(
    redundant: Redundant, faults: Faults, figures: dict[str, object]
) -> None:
    api, ours = redundant.api, redundant.ours
    before = _bound(api)
    redundant.kill_leader()
    began = time.monotonic()
    redundant.create_more()
    wait_until(lambda: len(_bound(api)) > len(before), what=ours.log_tails, seconds=PATIENCE_SECONDS)
    first = time.monotonic() - began
    redundant.wait_for_all()
    redundant.count(faults)
    figures["failover with a warm standby"] = (
        f"after {len(before)} allocations and leases of {PACE['HETSCHED_LEASE_SECONDS']} s the next pod was bound "
        f"{first:.1f} s after the leader was killed; 0 assigned twice"
    )


def test_resumed_stale_leader_writes_nothing(redundant: Redundant, faults: Faults) -> None:
    ours = redundant.ours
    sleeper = _follower(ours)
    assert ours.driver
    epoch = ours.driver("follower")["epoch"]
    os.killpg(sleeper.popen.pid, signal.SIGSTOP)
    try:
        redundant.create_more()
        wait_until(
            lambda: ours.driver and ours.driver("follower")["epoch"] > epoch,
            what=ours.log_tails,
            seconds=PATIENCE_SECONDS,
        )
        redundant.wait_for_all()
        now = ours.driver("follower")
    finally:
        os.killpg(sleeper.popen.pid, signal.SIGCONT)
    # The old leader wakes up with pending pods and a stale cache that it takes for current.
    redundant.create_more()
    redundant.wait_for_all()
    redundant.count(faults)
    after = ours.driver("follower")
    assert after["epoch"] >= now["epoch"]
    assert sleeper.running


def _follower(ours: Plane) -> Process:
    """Return the process that runs the informer."""
    assert ours.driver
    pid = int(ours.driver("follower")["id"].rpartition("/")[2])
    (process,) = [one for one in ours.running if one.popen.pid == pid]
    return process


def _bound(api: Api) -> dict[str, str]:
    return {pod["metadata"]["name"]: node for pod in listed(api)[0] if (node := node_of(pod))}


def _wait_for(api: Api, ours: Plane, count: int) -> None:
    wait_until(
        lambda: len(_bound(api)) == count,
        what=lambda: f"{len(_bound(api))} of {count}\n{ours.log_tails()}",
        seconds=PATIENCE_SECONDS,
    )
