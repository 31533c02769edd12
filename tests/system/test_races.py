"""Several processes that all act as leader, and evict: nothing is reserved twice or lost, every document is correct.

The lease is disabled in them, so only the compare-and-set and the indexes of the database prevent conflicts.
HETSCHED_TEST_RACE_SECONDS sets the duration, HETSCHED_TEST_SEED the seed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess

import pytest

from tests.system.plane import BACKENDS
from tests.system.processes import ROOT, python

SECONDS = os.environ.get("HETSCHED_TEST_RACE_SECONDS", "10")
SEED = int(os.environ.get("HETSCHED_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
RACERS = 3
pytestmark = pytest.mark.chaos


@pytest.mark.parametrize(
    "backend",
    ["sqlite-valkey", pytest.param("postgres-redis", marks=pytest.mark.needs("postgres", "redis-server"))],
)
def test_leaders_that_do_not_know_of_each_other_break_nothing(backend: str, figures: dict[str, object]) -> None:
    with BACKENDS[backend](HETSCHED_BATCH="20") as plane:
        assert plane.driver
        plane.driver("add_cluster", name="race", nodes=2)
        plane.driver("let_preempt")

        def start(*words: str) -> subprocess.Popen[str]:
            command = python("-m", "tests.system.racer", *words)
            return subprocess.Popen(command, env=plane.env, cwd=ROOT, stdout=subprocess.PIPE, text=True)

        racing = [start(str(SEED + number), SECONDS) for number in range(RACERS)]
        done = [json.loads(racer.communicate(timeout=120 + float(SECONDS))[0]) for racer in racing]
        where = f"{backend}, seed {SEED}: {done}"
        assert [racer["errors"] for racer in done] == [[]] * RACERS, where
        assert sum(racer["decided"] for racer in done) > 50, where
        assert sum(racer["conflicts"] for racer in done) > 0, where
        found = json.loads(start("check").communicate(timeout=120)[0])
        assert found.pop("evicted") > 0, where
        assert found == {"violations": [], "differing": []}, where
        decided, lost = (sum(racer[name] for racer in done) for name in ("decided", "conflicts"))
        figures[f"{RACERS} leaders at once, {backend}"] = f"{decided} decided, {lost} batches lost; 0 given twice"
