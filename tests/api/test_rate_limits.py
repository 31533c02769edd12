"""Rate limits per client: 429 with Retry-After above the limit and no effect; other clients are not affected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIRequest

from hetsched.access.limits import Limit, LocalBuckets, take
from hetsched.access.models import Bucket
from hetsched.access.tokens import create_token
from hetsched.placement.models import Workload
from hetsched.project.handler import WORKING_THREADS, ThreadedHandler
from web.api import rates

from .conftest import POD, Api
from .test_what_if_endpoint import no_writes


@pytest.fixture(autouse=True)
def fresh() -> None:
    rates.reads.clear()


def submit(caller: Api, name: str = "web", **headers: str) -> Any:
    return caller("POST", "workloads/", POD.replace("web", name), kind="application/yaml", **headers)


def test_submissions_beyond_the_limit_get_retry_after(operator: Api, cluster: Any, settings: Any) -> None:
    # One token is refilled every 60 s: two are available immediately, the third after most of a minute.
    settings.HETSCHED_SUBMITS_PER_MINUTE, settings.HETSCHED_SUBMITS_AT_ONCE = 1, 2
    answers = [submit(operator, f"p{number}") for number in range(3)]
    assert [answer.status_code for answer in answers] == [202, 202, 429]
    assert [answer["RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]
    refused = answers[2]
    assert refused.json()["code"] == "RateLimited"
    assert 0 < int(refused["Retry-After"]) <= 60
    assert Workload.objects.count() == 2


def test_tokens_have_separate_buckets(api: Callable[..., Api], cluster: Any, settings: Any) -> None:
    settings.HETSCHED_SUBMITS_PER_MINUTE, settings.HETSCHED_SUBMITS_AT_ONCE = 1, 1
    first, second = api("submitter"), api("submitter")
    assert [submit(first, "a").status_code, submit(first, "b").status_code] == [202, 429]
    assert submit(second, "c").status_code == 202


def test_expired_write_is_rejected_with_retry_after(
    operator: Api, cluster: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.HETSCHED_LONGEST_QUEUE_MILLIS = 500
    monkeypatch.setattr(WSGIRequest, "scope", {"waited_seconds": 0.501}, raising=False)
    refused = submit(operator, "late", idempotency_key="late")
    assert (refused.status_code, refused["Retry-After"]) == (429, "1")
    assert refused["Content-Type"] == "application/problem+json"
    assert refused.json()["code"] == "ServerBusy"
    cordon = operator("POST", "nodes/n1/actions/", {"action": "cordon", "reason": "x"}, if_match="*")
    assert cordon.json()["code"] == "ServerBusy"
    assert (Workload.objects.count(), Bucket.objects.count()) == (0, 0)  # no effect and no count
    assert operator("GET", "workloads/").status_code == 200
    settings.HETSCHED_LONGEST_QUEUE_MILLIS = 0
    assert submit(operator, "late", idempotency_key="late").status_code == 202


def test_request_started_in_time_is_served(
    operator: Api, cluster: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.HETSCHED_LONGEST_QUEUE_MILLIS = 500
    monkeypatch.setattr(WSGIRequest, "scope", {"waited_seconds": 0.5}, raising=False)
    assert submit(operator).status_code == 202


def test_request_is_late_only_if_all_threads_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    handler, seen = ThreadedHandler(), []
    monkeypatch.setattr(handler, "_answer", lambda scope, body, waits: seen.append(scope["waited_seconds"]))
    asyncio.run(handler._run_working({}, None))
    assert (seen, handler._working_count) == ([0.0], 0)
    handler._working_count = WORKING_THREADS
    asyncio.run(handler._run_working({}, None))
    assert seen[1] > 0
    assert handler._working_count == WORKING_THREADS


def test_token_rate_overrides_the_default(db: Any, cluster: Any) -> None:
    own = Api(create_token(role="submitter", name="ci", submits_per_minute=1)[1])
    assert [submit(own, "a").status_code, submit(own, "b").status_code] == [202, 429]
    none = Api(create_token(role="submitter", name="looker", submits_per_minute=0)[1])
    assert (submit(none, "c").status_code, none("GET", "workloads/").status_code) == (403, 200)


def test_other_writes_have_a_separate_bucket(operator: Api, cluster: Any, settings: Any) -> None:
    settings.HETSCHED_WRITES_PER_MINUTE, settings.HETSCHED_WRITES_AT_ONCE = 1, 1
    action = {"action": "cordon", "reason": "x"}
    statuses = [operator("POST", "nodes/n1/actions/", action, if_match="*").status_code for _ in range(2)]
    assert statuses == [200, 429]
    assert submit(operator).status_code == 202


def test_reads_are_counted_without_a_write(operator: Api, cluster: Any, settings: Any) -> None:
    operator.get("nodes/")  # records the first use of the token
    settings.HETSCHED_READS_PER_MINUTE, settings.HETSCHED_READS_AT_ONCE = 1, 2
    rates.reads.clear()
    with no_writes():
        statuses = [operator("GET", "nodes/").status_code for _ in range(3)]
    assert statuses == [200, 200, 429]


def test_disabled_limit_accepts_all_requests(operator: Api, cluster: Any, settings: Any) -> None:
    settings.HETSCHED_SUBMITS_PER_MINUTE = 0
    settings.HETSCHED_SUBMITS_AT_ONCE = 1
    assert [submit(operator, f"p{number}").status_code for number in range(3)] == [202] * 3
    assert not Bucket.objects.exists()


def test_spent_tokens_are_refilled(db: Any) -> None:
    limit = Limit(60, 2)  # one a second
    assert [take("k", limit).admitted for _ in range(3)] == [True, True, False]
    Bucket.objects.update(full_at=Bucket.objects.get().full_at - 1_000_000)
    assert [take("k", limit).admitted for _ in range(2)] == [True, False]


def test_clock_set_back_blocks_no_client(db: Any) -> None:
    limit = Limit(60, 2)  # one a second: the taken tokens are refilled in 2 s at the latest
    assert take("k", limit).admitted
    Bucket.objects.update(full_at=Bucket.objects.get().full_at + 3_600_000_000)
    assert [take("k", limit).admitted for _ in range(3)] == [True, True, False]


def test_cost_above_the_bucket_size_takes_the_whole_bucket(db: Any) -> None:
    limit = Limit(1, 5)
    assert take("k", limit, 100).admitted
    assert not take("k", limit).admitted


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetsched.access.limits._MOST_IN_MEMORY", 3)
    buckets = LocalBuckets()
    for number in range(10):
        assert buckets.take(str(number), Limit(1, 1)).admitted
    assert len(buckets._full_at) == 3


def test_public_reads_are_counted_by_address(client: Any, settings: Any) -> None:
    settings.HETSCHED_STRANGERS_PER_MINUTE, settings.HETSCHED_STRANGERS_AT_ONCE = 1, 2
    script = "/api/v1/docs?script="
    near, far = {"REMOTE_ADDR": "192.0.2.1"}, {"REMOTE_ADDR": "192.0.2.2"}
    answers = [client.get(page, **near) for page in (script, "/api/v1/docs", "/api/v1/schema", script)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert [answer["RateLimit-Remaining"] for answer in answers] == ["1", "0", "0", "0"]
    refused = answers[2]
    assert (refused["Content-Type"], refused.json()["code"]) == ("application/problem+json", "RateLimited")
    assert 0 < int(refused["Retry-After"]) <= 60
    # The header is ignored, and no other client waits because of it.
    assert client.get(script, **near, HTTP_X_FORWARDED_FOR="192.0.2.3").status_code == 429
    assert client.get(script, **far).status_code == 200
