"""Repeated SIGKILL of the watch process, the worker or both while pods are bound on a real API server.

Each round creates a mixed batch of pods, kills at a random moment of their lifecycle, restarts the processes and waits.
No pod may be lost, bound against its own constraints, reserved twice, left behind, or released while it exists.
HETSCHED_TEST_LIVE_KILLS sets the number of rounds, HETSCHED_TEST_SEED the moments.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import PODS
from tests.fault_table import Faults
from tests.kube import mixed_fleet
from tests.kube.control_plane import ControlPlane
from tests.kube.live import (
    PACE,
    count_early_releases,
    count_faults,
    count_leaked,
    listed,
    node_of,
    scheduling,
    start_watch,
)
from tests.system.plane import Plane
from tests.system.processes import wait_until

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.needs("etcd", "kube-apiserver", "postgres", "redis-server"),
    pytest.mark.timeout(3600),
]
KILLS = int(os.environ.get("HETSCHED_TEST_LIVE_KILLS", "3"))
SEED = int(os.environ.get("HETSCHED_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
VICTIMS = (("watch",), ("worker",), ("watch", "worker"))
NODES, PODS_EACH = 40, 50
PATIENCE_SECONDS = 120


def test_no_pod_is_lost_bound_twice_leaked_or_released_early(
    api: Api, plane: ControlPlane, faults: Faults, figures: dict[str, object]
) -> None:
    random_times = random.Random(SEED)
    mid_batch_kills = 0
    recoveries: list[float] = []
    with scheduling(plane, **PACE) as ours:
        processes = dict(zip(("watch", "worker", "beat"), ours.running, strict=True))
        mixed_fleet.create_fleet(api, NODES)
        for name in ("warm-up", "calm"):  # the first one includes the processes' own start
            first, took = _round(api, ours, faults, name, lambda: None)
        for number in range(KILLS):
            victims = VICTIMS[number % len(VICTIMS)]
            after = random_times.uniform(first / 2, took)

            def kill(victims: tuple[str, ...] = victims, after: float = after) -> None:
                nonlocal mid_batch_kills
                time.sleep(after)
                for name in victims:
                    processes[name].kill_group()
                mid_batch_kills += 0 < _bound(api) < mixed_fleet.bindable(PODS_EACH)
                for name in victims:
                    processes[name] = start_watch(ours) if name == "watch" else ours.start_worker()
                count_early_releases(api, ours, faults, where=f"killed {victims}")

            recoveries.append(_round(api, ours, faults, f"round {number} of seed {SEED}, killed {victims}", kill)[1])
            faults.size = f"{number + 1} kills, {mid_batch_kills} in the middle of a batch of {PODS_EACH} pods"
        figures["kill -9 on a live cluster"] = (
            f"{KILLS} kills, {mid_batch_kills} in the middle of a batch; 0 pods lost, 0 bound twice, "
            f"0 reservations leaked, 0 released early; a batch of {PODS_EACH} was bound within {took:.1f} s without "
            f"a kill, {sorted(recoveries)[len(recoveries) // 2]:.1f} s (maximum {max(recoveries):.1f}) with one"
        )


def _round(api: Api, ours: Plane, faults: Faults, where: str, disturb: Callable[[], None]) -> tuple[float, float]:
    """Place a batch of pods while something happens; delete them at the end.

    Returns the time of the first and of the last binding, in seconds after the creation of the pods.
    """
    ask = ours.driver
    assert ask
    mixed_fleet.create_pods(api, PODS_EACH, NODES)
    began = time.monotonic()
    disturb()

    def what() -> str:
        return f"{where}: {ask('live_states')}\n{ours.log_tails()}"

    wanted = mixed_fleet.bindable(PODS_EACH)
    wait_until(lambda: _bound(api) > 0, what=what, seconds=PATIENCE_SECONDS)
    first = time.monotonic() - began
    with suppress(AssertionError):  # `count_faults` counts the lost pods
        wait_until(lambda: _bound(api) == wanted, what=what, seconds=PATIENCE_SECONDS)
    took = time.monotonic() - began
    count_faults(api, ours, faults, wanted, where=where, seconds=PATIENCE_SECONDS)
    api.send("DELETE", PODS.path(namespace="default"), query={"gracePeriodSeconds": "0"})
    count_leaked(ours, faults, where=where, seconds=PATIENCE_SECONDS)
    return first, took


def _bound(api: Api) -> int:
    return sum(bool(node_of(pod)) for pod in listed(api)[0])
