"""Fifty threads compete for a limited number of grants: exactly the limit succeeds, on either database.

HETSCHED_TEST_RACE_REPEATS sets the number of runs of each race.
"""

from __future__ import annotations

import os

import pytest

from tests.system.plane import BACKENDS

REPEATS = int(os.environ.get("HETSCHED_TEST_RACE_REPEATS", "1"))
pytestmark = pytest.mark.chaos


@pytest.mark.parametrize(
    "backend",
    ["sqlite-valkey", pytest.param("postgres-redis", marks=pytest.mark.needs("postgres", "redis-server"))],
)
def test_exactly_the_limit_is_admitted(backend: str) -> None:
    with BACKENDS[backend](HETSCHED_MOST_WAITING_PODS_PER_NAMESPACE="20") as plane:
        assert plane.driver
        plane.driver("add_cluster", name="race", nodes=1)
        for repeat in range(REPEATS):
            rate = plane.driver("race_rate", key=f"k{repeat}", most=20, threads=50)
            assert rate == {"admitted": 20, "refused": 30, "errors": []}, (backend, repeat, rate)
        for repeat in range(REPEATS):
            quota = plane.driver("race_quota", cluster="race", prefix=f"q{repeat}", most=15, threads=50)
            assert quota == {"202": 15, "QuotaExceeded": 35}, (backend, repeat, quota)
        for repeat in range(REPEATS):
            room = plane.driver("race_namespace", cluster="race", prefix=f"n{repeat}", threads=50)
            assert room == {"202": 20, "NamespaceFull": 30}, (backend, repeat, room)
        for repeat in range(REPEATS):
            size = {"most": 160, "threads": 40, "rounds": 5}
            shared = plane.driver("race_shared_namespace", cluster="race", prefix=f"s{repeat}", **size)
            assert shared.pop("shared") >= 39, (backend, repeat, shared)
            assert shared == {"202": 160, "NamespaceFull": 40}, (backend, repeat, shared)
