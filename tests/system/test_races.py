"""Several processes that all act as leader, and evict: nothing is reserved twice or lost, every document is correct.

The lease is disabled in them, so only the compare-and-set and the indexes of the database prevent conflicts.
HETSCHED_TEST_RACE_SECONDS sets the duration, HETSCHED_TEST_SEED the seed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from typing import Any

import pytest

from tests.fault_table import Faults
from tests.system.plane import BACKENDS
from tests.system.processes import ROOT, python
from tests.system.racer import CLAIMS

SECONDS = os.environ.get("HETSCHED_TEST_RACE_SECONDS", "5")
SEED = int(os.environ.get("HETSCHED_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
RACERS = 3
ROUNDS = 4  # a slow machine needs more than one for the first conflict and eviction
CHECK_SECONDS = 120
pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(60 + ROUNDS * (float(SECONDS) + 2 * CHECK_SECONDS)),
]


@pytest.mark.parametrize(
    "backend",
    ["sqlite-valkey", pytest.param("postgres-redis", marks=pytest.mark.needs("postgres", "redis-server"))],
)
def test_concurrent_leaders_keep_all_invariants(backend: str, faults: Faults, figures: dict[str, object]) -> None:
    with BACKENDS[backend](HETSCHED_BATCH="20") as plane:
        assert plane.driver
        plane.driver("add_cluster", name="race", nodes=2, claims=CLAIMS)
        plane.driver("enable_preemption")

        def start(*words: str) -> subprocess.Popen[str]:
            command = python("-m", "tests.system.racer", *words)
            return subprocess.Popen(command, env=plane.env, cwd=ROOT, stdout=subprocess.PIPE, text=True)

        def total(name: str) -> int:
            return sum(racer[name] for racer in done)

        def check() -> dict[str, Any]:
            return json.loads(start("check").communicate(timeout=CHECK_SECONDS)[0])

        done: list[dict[str, Any]] = []
        found: dict[str, Any] = {}
        for first in range(SEED, SEED + ROUNDS * RACERS, RACERS):
            racing = [start(str(first + number), SECONDS) for number in range(RACERS)]
            done += [json.loads(racer.communicate(timeout=CHECK_SECONDS + float(SECONDS))[0]) for racer in racing]
            found = check()
            if total("decided") > 50 and total("conflicts") > 0 and found["evicted"] > 0:
                break
        where = f"{backend}, seed {SEED}: {done}"
        assert [racer["errors"] for racer in done] == [[]] * len(done), where
        assert total("decided") > 50, where
        assert total("conflicts") > 0, where
        assert found.pop("evicted") > 0, where
        devices, shares = found.pop("devices"), found.pop("shares")
        assert min(devices, shares) > 0, where
        faults.size = f"{len(done)} racers for {SECONDS} s, {total('decided')} decisions"
        faults.add("bound twice", found["violations"])
        faults.add("lost", found["differing"])
        faults.assert_none(where)
        figures[f"{RACERS} leaders at once, {backend}"] = (
            f"{total('decided')} decided, {devices} devices and {shares} shares of devices granted, "
            f"{total('conflicts')} batches lost; 0 reserved twice"
        )
