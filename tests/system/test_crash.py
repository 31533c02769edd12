"""SIGKILL of the whole worker in the middle of a batch: nothing is lost, nothing is reserved twice, and work continues.

Each round submits one workload that fits, kills the worker's process group at a random moment (in every second round
during its work), starts another worker and waits. HETSCHED_TEST_KILLS sets the number of rounds, HETSCHED_TEST_SEED the
moments.
"""

from __future__ import annotations

import os
import random
import time

import pytest
import redis

from tests.fault_table import Faults
from tests.system.driver import Driver
from tests.system.plane import BACKENDS, Plane
from tests.system.processes import wait_until

KILLS = int(os.environ.get("HETSCHED_TEST_KILLS", "4"))
SEED = int(os.environ.get("HETSCHED_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
PODS = 240
pytestmark = pytest.mark.chaos
# Lease and sweep determine how soon another worker may continue; small batches give many moments for a kill.
PACE = {"HETSCHED_LEASE_SECONDS": "2", "HETSCHED_SWEEP_SECONDS": "1", "HETSCHED_BATCH": "24"}
LONGEST_RECOVERY_SECONDS = 60  # a few seconds on an idle machine


@pytest.mark.timeout(120 + 20 * KILLS)
@pytest.mark.parametrize(
    "backend",
    ["sqlite-valkey", pytest.param("postgres-redis", marks=pytest.mark.needs("postgres", "redis-server"))],
)
def test_killed_worker_neither_loses_nor_doubles_pods(backend: str, faults: Faults, figures: dict[str, object]) -> None:
    with BACKENDS[backend](**PACE) as plane:
        ask = plane.driver
        assert ask
        ask("add_cluster", name="crash", nodes=60)
        plane.start_beat()
        worker = plane.start_worker()
        earliest, latest = _calm_round(plane, faults)
        random_counts = random.Random(SEED)
        mid_batch_kills = 0
        for number in range(KILLS):
            workload = ask("submit", cluster="crash", prefix=f"round-{number}", pods=PODS)
            if number % 2:  # any moment, including the worker's start and end
                time.sleep(random_counts.uniform(earliest, latest))
            else:  # during the work, however fast this machine is
                remaining = random_counts.randrange(PODS // 5, PODS)
                wait_until(lambda w=workload, n=remaining: _pending(ask, w) <= n, what=plane.log_tails)
            worker.kill_group()
            mid_batch_kills += 0 < _pending(ask, workload) < PODS
            worker = plane.start_worker()
            _all_placed(plane, workload, f"{backend}, seed {SEED}, round {number}", faults)
            faults.size = f"{number + 1} kills, {mid_batch_kills} in the middle of a batch"
        assert mid_batch_kills >= max(1, KILLS // 5)  # otherwise the kills happen before or after the decisions
        figures[f"kill -9 of the worker, {backend}"] = (
            f"{KILLS} kills, {mid_batch_kills} in the middle of a batch; 0 pods lost, 0 placed twice"
        )


@pytest.mark.timeout(300)
def test_emptied_store_loses_no_workload(faults: Faults) -> None:
    with BACKENDS["sqlite-valkey"](**PACE) as plane:
        ask = plane.driver
        assert ask
        ask("add_cluster", name="crash", nodes=60)
        workload = ask("submit", cluster="crash", prefix="lost", pods=PODS)
        with redis.Redis.from_url(plane.env["REDIS_URL"]) as store:
            assert store.llen("schedule") == 1  # the only wake-up
            store.flushall()
        plane.start_worker()
        plane.start_beat()
        _all_placed(plane, workload, "after the store was emptied", faults)
        faults.size = f"{PODS} pods"


def _calm_round(plane: Plane, faults: Faults) -> tuple[float, float]:
    """Run one workload without a kill and return the start and end of its work, in seconds after the submission."""
    ask = plane.driver
    assert ask
    for name in ("warm-up", "measured"):  # the first one includes the worker's own start
        workload = ask("submit", cluster="crash", prefix=name, pods=PODS)
        began = wait_until(lambda w=workload: _pending(ask, w) < PODS, what=plane.log_tails)
        ended = wait_until(lambda w=workload: not _pending(ask, w), what=plane.log_tails)
        _all_placed(plane, workload, name, faults)
    return began / 2, began + ended


def _pending(ask: Driver, workload: str) -> int:
    return int(ask("states", workload=workload).get("pending", 0))


def _all_placed(plane: Plane, workload: str, where: str, faults: Faults) -> None:
    """Wait until the workload is decided, check the invariants of the whole database, and release the reservations."""
    ask = plane.driver
    assert ask
    wait_until(
        lambda: not _pending(ask, workload),
        what=lambda: f"{where}: {ask('states', workload=workload)}\n{plane.log_tails()}",
        seconds=LONGEST_RECOVERY_SECONDS,
    )
    placed, counts = ask("states", workload=workload).get("placed", 0), ask("reservation_counts", workload=workload)
    faults.add("lost", range(PODS - placed))
    faults.add("bound twice", [*range(counts["reservations"] - counts["holding"]), *ask("violations")])
    faults.add("freed early", range(placed - counts["holding"]))
    ask("cancel", workload=workload)
    faults.add("leaked", range(ask("reservation_counts", workload=workload)["reservations"]))
    faults.assert_none(where)
