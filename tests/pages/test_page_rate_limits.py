"""Pages, exports and search take tokens from the rate limit of reads."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from web.api import rates


@pytest.fixture(autouse=True)
def two_reads(settings: Any) -> Any:
    settings.HETSCHED_READS_PER_MINUTE, settings.HETSCHED_READS_AT_ONCE = 1, 2
    rates.reads.clear()
    yield
    rates.reads.clear()


@pytest.mark.parametrize(
    "address", ["/nodes/", "/nodes/?format=csv", "/search/?q=n&format=json", "/", "/api/v1/nodes/"]
)
def test_pages_take_tokens_from_the_rate_limit_of_reads(viewer: Client, cluster: Any, address: str) -> None:
    answers = [viewer.get(address) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]
    assert int(answers[2].headers["Retry-After"]) > 0


def test_people_read_a_page_and_programs_a_document(viewer: Client, cluster: Any) -> None:
    for _ in range(2):
        viewer.get("/nodes/")
    assert b"Too many requests" in viewer.get("/nodes/").content
    assert viewer.get("/nodes/?format=json").json()["code"] == "RateLimited"
    assert "请求过多" in viewer.get("/nodes/", headers={"Accept-Language": "zh-hans"}).content.decode()


def test_page_rate_limits_are_separate_for_each_user(browsing: Any, cluster: Any) -> None:
    first, second = browsing("viewer"), browsing("viewer")
    for _ in range(3):
        first.get("/nodes/")
    assert second.get("/nodes/").status_code == 200
