"""Concurrent senders that submit, hold, claim and end the same objects, and killed senders: each object exists once.

HETSCHED_TEST_RACE_REPEATS sets the number of runs of each race.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.plane import BACKENDS, Plane
from tests.system.processes import ROOT, python

pytestmark = pytest.mark.chaos
REPEATS = int(os.environ.get("HETSCHED_TEST_RACE_REPEATS", "1"))
THREADS = 20
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec: {containers: [{name: main, image: "job:1", resources: {requests: {cpu: 100m}}}]}
"""


@pytest.fixture(
    scope="module",
    params=["sqlite-valkey", pytest.param("postgres-redis", marks=pytest.mark.needs("postgres", "redis-server"))],
)
def plane(request: pytest.FixtureRequest) -> Iterator[Plane]:
    """Yield two nodes with 4 GPUs each and a second cluster; an owner may have at most 10 holds."""
    with BACKENDS[request.param](
        HETSCHED_MOST_HOLDS="10", HETSCHED_CALLBACK_HOSTS="ci.example", HETSCHED_DEFAULT_CLUSTER="race"
    ) as plane:
        assert plane.driver
        plane.driver("add_cluster", name="race", nodes=2)
        plane.driver("add_cluster", name="other", nodes=1)
        yield plane


@pytest.mark.parametrize("repeat", range(REPEATS))
def test_each_object_is_created_once_by_concurrent_senders(plane: Plane, repeat: int) -> None:
    ask = plane.driver
    assert ask
    of = {"cluster": "race", "threads": THREADS}
    same = ask("race_key", key=f"k{repeat}", **of)
    assert same == {"answers": {"202": THREADS}, "ids": 1, "workloads": 1}
    other, half = ask("race_key", key=f"o{repeat}", both=True, **of), THREADS // 2
    assert other == {"answers": {"202": half, "422 IdempotencyKeyReused": half}, "ids": 1, "workloads": 1}
    batch = ask("race_batch", key=f"b{repeat}", **of)
    assert batch == {"answers": {"202": THREADS}, "ids": 5, "workloads": 5}
    batches = ask("race_batches", key=f"a{repeat}", **of)
    # Two senders for each set of keys, with different pods: one of them gets the response that its keys are used.
    assert batches == {"answers": {"202": half, "422 BatchRefused": half}, "workloads": half * 6}
    claim = ask("race_claim", key=f"c{repeat}", **of)
    assert claim == {"answers": {"202": 1, "409 HoldOver": THREADS - 1}}
    end = ask("race_end", key=f"e{repeat}", **of)
    won = {"state": "claimed", "held": 1, "submitted": 1, "failed": 0}
    lost = {"state": "cancelled", "held": 0, "submitted": 0, "failed": 0}
    assert end in (won, lost)
    plan = ask("race_plan", key=f"p{repeat}", **of)["answers"]
    assert plan.pop("202") == 1
    assert plan.keys() <= {"409 PodExists", "412 PlanStale"}
    ask("cancel_holds")
    room = ask("race_room", key=f"r{repeat}", **of)
    assert room == {"answers": {"201": 8, "409 NoRoom": THREADS - 8}}
    ask("cancel_holds")
    most = ask("race_most", key=f"m{repeat}", other="other", **of)
    assert most == {"answers": {"201": 10, "429 TooManyHolds": THREADS - 10}}
    assert ask("holds_open") == 10
    ask("cancel_holds")
    if not repeat:
        hooks = ask("race_webhooks", key="hooks", **of)
        assert hooks == {"answers": {"201": 5, "409 WebhooksTooMany": THREADS - 5}}
    assert ask("violations") == []


@pytest.mark.parametrize("when", ["inside", "after"])
def test_killed_sender_leaves_a_complete_object_or_none(plane: Plane, when: str) -> None:
    assert plane.driver
    _batch(plane, when)
    _hold(plane, when)
    plane.driver("cancel_holds")
    assert plane.driver("violations") == []


def _hold(plane: Plane, when: str) -> None:
    assert plane.driver
    before = plane.driver("holds_open")
    again = _killed(plane, when, "holds/", {"manifest": POD.replace("NAME", f"h-{when}")})
    assert again[0] == 201
    assert plane.driver("holds_open") == before + 1


def _batch(plane: Plane, when: str) -> None:
    """Kill a batch at the end of its first item; the retry finds the accepted item and processes the others."""
    assert plane.driver
    before = sum(plane.driver("workloads").values())
    items = [{"manifest": POD.replace("NAME", f"b{number}-{when}")} for number in range(3)]
    status, answer = _killed(plane, when, "submissions/", {"items": items})
    assert status == 202
    assert [item.get("replayed", False) for item in answer["items"]] == [when == "after", False, False]
    assert sum(plane.driver("workloads").values()) == before + 3


def _killed(plane: Plane, when: str, address: str, body: dict[str, Any]) -> list[Any]:
    """Kill a process during a request, then send the same request again; return the response."""
    assert plane.driver
    key = f"{address} {when}".replace(" ", "-")
    words = ("-m", "tests.system.submission_races", when, address, json.dumps(body), key, plane.driver("token"))
    died = subprocess.run(python(*words), env=plane.env, cwd=ROOT, capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    again: list[Any] = plane.driver("send", address=address, body=body, key=key)
    return again
