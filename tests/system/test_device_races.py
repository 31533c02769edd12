"""Several processes allocate the devices of random claims at the same time: no device is allocated twice.

HETSCHED_TEST_DEVICE_CLAIMS sets the least number of allocated claims on each database, HETSCHED_TEST_SEED the first
seed.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import count

import pytest

from tests.system.device_races import WITHOUT_COMPARISON, WITHOUT_INDEX
from tests.system.driver import Driver
from tests.system.plane import BACKENDS

CLAIMS = int(os.environ.get("HETSCHED_TEST_DEVICE_CLAIMS", "100"))
SEED = int(os.environ.get("HETSCHED_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
RACERS = 3
SECONDS = 5.0  # of the race on one cluster, longer for many claims
CLUSTERS_OF_DATABASE = 10  # limits the size of the database
pytestmark = pytest.mark.chaos


@contextmanager
def racers(backend: str) -> Iterator[list[Driver]]:
    """Yield helper processes on one database."""
    with BACKENDS[backend]() as plane, ExitStack() as stack:
        assert plane.driver
        yield [plane.driver, *(stack.enter_context(closing(Driver(plane.env))) for _ in range(RACERS - 1))]


def race(drivers: list[Driver], seed: int, seconds: float, fault: str = "") -> tuple[Counter[str], list[str]]:
    """Race on the cluster of a seed; return counts and problems."""
    first = drivers[0]
    cluster = first("add_race", seed=seed, fault=fault)
    with ThreadPoolExecutor(len(drivers)) as pool:
        running = [
            pool.submit(driver, "race_claims", cluster=cluster, seed=seed + number, seconds=seconds, fault=fault)
            for number, driver in enumerate(drivers)
        ]
        counts = sum((Counter(done.result()) for done in running), Counter())
    found = first("check_race", cluster=cluster, seed=seed)
    problems = found["problems"] + found["violations"]
    for driver in drivers:
        problems += [f"{name} is promised at the end" for name in driver("cached_promises", cluster=cluster)]
    if found["claims"] != counts["claims"]:
        problems.append(f"{counts['claims']} claims were counted and {found['claims']} recorded")
    return counts, problems


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "backend",
    ["sqlite-valkey", pytest.param("postgres-redis", marks=pytest.mark.needs("postgres", "redis-server"))],
)
def test_no_device_is_allocated_twice(backend: str, figures: dict[str, object]) -> None:
    seeds, total, seconds = count(SEED), Counter[str](), max(SECONDS, min(CLAIMS / 500, 60))
    while total["claims"] < CLAIMS:
        with racers(backend) as drivers:
            for _ in range(CLUSTERS_OF_DATABASE):
                seed = next(seeds)
                counts, problems = race(drivers, seed, seconds)
                total += counts
                assert not problems, f"{backend}, seed {seed}: {problems}"
                if total["claims"] >= CLAIMS:
                    break
    assert total["conflicts"] > 0
    figures[f"{RACERS} processes, random device claims, {backend}"] = (
        f"{total['claims']} claims allocated, {total['released']} pods released, {total['conflicts']} batches lost; "
        "0 devices allocated twice"
    )


@pytest.mark.parametrize("fault", [WITHOUT_COMPARISON, WITHOUT_INDEX])
def test_missing_protection_is_found(fault: str) -> None:
    with racers("sqlite-valkey") as drivers:
        assert any(race(drivers, seed, SECONDS, fault)[1] for seed in range(8))
