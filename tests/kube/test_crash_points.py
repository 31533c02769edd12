"""SIGKILL of the deciding and binding process at each step of a pod's lifecycle: the next process continues there.

The points are those of `tests.system.faulty`. One process after the other runs the informer; each dies at the next
point with its own batch of pods in flight, and the last one survives. If a worker took a batch first, which it may
while no process leads, another batch follows. HETSCHED_TEST_CRASHES sets the number of repetitions, at other visits of
the points that one batch visits more than once; without it, only the riskiest points are tried, once.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import PODS
from tests.fault_table import Faults
from tests.kube import mixed_fleet
from tests.kube.control_plane import ControlPlane
from tests.kube.live import count_early_releases, count_faults, count_leaked, listed, node_of, scheduling
from tests.system.faulty import POINTS, fault
from tests.system.plane import Plane
from tests.system.processes import Process, wait_until

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.needs("etcd", "kube-apiserver", "postgres", "redis-server"),
    pytest.mark.timeout(7200),
]
CRASHES = int(os.environ.get("HETSCHED_TEST_CRASHES", "0"))
PACE = {"HETSCHED_LEASE_SECONDS": "2", "HETSCHED_SWEEP_SECONDS": "1", "HETSCHED_FORCED_HOLD_SECONDS": "1"}
TRIED = tuple(POINTS) if CRASHES else ("c10", "c4", "c13", "c8")
WHILE_DELETING = tuple(name for name in TRIED if name in ("c8", "c9"))  # points that a pod visits at its end
WHILE_BINDING = tuple(name for name in TRIED if name not in WHILE_DELETING)
NODES, ROUND = 120, 50
BATCH = slice(30, 44)  # of each fifty: three on whole GPUs, four on shares, three with exclusive CPUs, a gang of four
PATIENCE_SECONDS = 120
IDLE_SECONDS = 4  # after all pods are bound for so long, this batch visits no more points


def test_next_process_continues_after_a_kill_at_any_step(
    api: Api, plane: ControlPlane, faults: Faults, figures: dict[str, object]
) -> None:
    recoveries: list[float] = []
    with scheduling(plane, **PACE) as ours:
        ours.running[0].kill_group()
        mixed_fleet.create_fleet(api, NODES)
        for number in range(CRASHES or 1):
            recoveries.append(_round(api, ours, faults, number))
            faults.size = f"{len(TRIED) * (number + 1)} kills at {len(TRIED)} steps"
    figures["kill -9 at each step of a pod's lifecycle"] = (
        f"{len(TRIED) * (CRASHES or 1)} kills at {len(TRIED)} steps; 0 pods lost, 0 bound twice, "
        f"0 reservations leaked, 0 released early; "
        f"all pods were bound at most {max(recoveries):.1f} s after the last kill"
    )


def _round(api: Api, ours: Plane, faults: Faults, number: int) -> float:
    """Let one process after the other die; return the seconds from the last death until all pods were bound."""
    marks = ours.folder / f"points-{number}"
    marks.mkdir()
    wish = fault(die=list(TRIED), folder=str(marks), visit=1 + number % 3)

    def follower() -> Process:
        return ours.start_faulty("watch", wish, "-m", "django", "watch")

    batches = _Batches(api)
    for point in WHILE_BINDING:
        dying = follower()
        batches.create()
        _wait_for_death(api, ours, faults, dying, marks / point, batches)
    dying, died = follower(), time.monotonic()
    with suppress(AssertionError):  # `count_faults` counts the lost pods
        wait_until(batches.all_bound, what=lambda: _what(api, ours), seconds=PATIENCE_SECONDS)
    recovered = time.monotonic() - died
    count_faults(api, ours, faults, batches.pods, where=f"round {number}", seconds=PATIENCE_SECONDS)
    for turn, point in enumerate(WHILE_DELETING):
        last = turn + 1 == len(WHILE_DELETING)
        query = {"gracePeriodSeconds": "0", **({} if last else {"labelSelector": "half=0"})}
        api.send("DELETE", PODS.path(namespace="default"), query=query)
        _wait_for_death(api, ours, faults, dying, marks / point)
        dying = follower()
    count_leaked(ours, faults, where=f"round {number}", seconds=PATIENCE_SECONDS)
    dying.kill_group()
    return recovered


class _Batches:
    """The batches of a round, one after the other."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._count = self.pods = 0
        self._waited_at = time.monotonic()

    def create(self) -> None:
        batch = list(mixed_fleet.pods(ROUND * (self._count + 1), NODES))[-ROUND:][BATCH]
        for pod in batch:
            pod["metadata"]["labels"]["half"] = str(self._count % 2)
        mixed_fleet.create(self._api, batch, mixed_fleet.PODS_PATH)
        self._count, self.pods, self._waited_at = self._count + 1, self.pods + len(batch), time.monotonic()

    def all_bound(self) -> bool:
        return _bound(self._api) == self.pods

    def create_if_idle(self) -> None:
        now = time.monotonic()
        if not self.all_bound():
            self._waited_at = now
        elif now - self._waited_at > IDLE_SECONDS:
            self.create()


def _wait_for_death(
    api: Api, ours: Plane, faults: Faults, process: Process, mark: Path, batches: _Batches | None = None
) -> None:
    """Wait until the process died at its point; assert that every pod with a node still has its reservation."""

    def died() -> bool:
        if batches is not None and process.running:
            batches.create_if_idle()
        return not process.running

    wait_until(died, what=lambda: f"{mark}: {_what(api, ours)}", seconds=PATIENCE_SECONDS)
    assert mark.exists(), f"it died elsewhere: {process.said()[-3000:]}"
    count_early_releases(api, ours, faults, where=str(mark))


def _bound(api: Api) -> int:
    return sum(bool(node_of(pod)) for pod in listed(api)[0])


def _what(api: Api, ours: Plane) -> str:
    assert ours.driver
    return f"{_bound(api)} bound, {ours.driver('live_states')}\n{ours.log_tails()}"
