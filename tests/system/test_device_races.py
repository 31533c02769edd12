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
from itertools import count, islice
from typing import Any

import pytest

from tests.system.device_races import FAULTS
from tests.system.driver import Driver
from tests.system.plane import BACKENDS

CLAIMS = int(os.environ.get("HETSCHED_TEST_DEVICE_CLAIMS", "100"))
SEED = int(os.environ.get("HETSCHED_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
RACERS = 3
CLUSTERS = 8  # raced for at the same time; with fewer clusters, more batches of other processes are lost
SECONDS = 5.0  # of one race, longer for many claims
RACES_OF_DATABASE = 3  # limits the size of the database
pytestmark = pytest.mark.chaos


@contextmanager
def racers(backend: str) -> Iterator[list[Driver]]:
    """Yield helper processes on one database."""
    # The best nodes that a decision stores do not affect its allocation.
    with BACKENDS[backend](HETSCHED_TOP_NODES="0") as plane, ExitStack() as stack:
        assert plane.driver
        yield [plane.driver, *(stack.enter_context(closing(Driver(plane.env))) for _ in range(RACERS - 1))]


def race(drivers: list[Driver], seeds: list[int], seconds: float, fault: str = "") -> tuple[Counter[str], list[str]]:
    """Race on the clusters of these seeds; return counts and problems.

    One process adds and checks a cluster; all processes race on all clusters.
    """
    owners = [drivers[number % len(drivers)] for number in range(len(seeds))]
    with ThreadPoolExecutor(len(drivers)) as pool:

        def each(name: str, **arguments: object) -> list[Any]:
            """Let each process do this for its own clusters."""

            def one(driver: Driver) -> list[Any]:
                own = [seed for seed, owner in zip(seeds, owners, strict=True) if owner is driver]
                return [driver(name, seed=seed, **arguments) for seed in own]

            return [answer for answers in pool.map(one, drivers) for answer in answers]

        clusters = each("add_race", fault=fault)
        running = [
            pool.submit(driver, "race_claims", clusters=clusters, seed=seeds[0] + at, seconds=seconds, fault=fault)
            for at, driver in enumerate(drivers)
        ]
        counts = sum((Counter(done.result()) for done in running), Counter())
        found = each("check_race")
    problems = [problem for one in found for problem in one["problems"] + one["violations"]]
    for driver in drivers:
        for cluster in clusters:
            promises = driver("cached_promises", cluster=cluster)
            problems += [f"{name} of {cluster} is promised at the end" for name in promises]
    recorded = sum(one["claims"] for one in found)
    if recorded != counts["claims"]:
        problems.append(f"{counts['claims']} claims were counted and {recorded} recorded")
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
            for _ in range(RACES_OF_DATABASE):
                some = list(islice(seeds, CLUSTERS))
                counts, problems = race(drivers, some, seconds)
                total += counts
                assert not problems, f"{backend}, seed {some[0]}: {problems}"
                if total["claims"] >= CLAIMS:
                    break
    assert total["conflicts"] > 0
    figures[f"{RACERS} processes, random device claims, {backend}"] = (
        f"{total['claims']} claims allocated, {total['released']} pods released, {total['conflicts']} batches lost; "
        "0 devices allocated twice"
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault: str) -> None:
    with racers("sqlite-valkey") as drivers:
        assert any(race(drivers, [seed], SECONDS, fault)[1] for seed in range(8))
