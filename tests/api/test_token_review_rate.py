"""The rate of token reviews at an API server is limited, because anonymous clients can send invented tokens."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from hetsched.adapters.kubernetes.connections import service_account_tokens
from hetsched.inventory import connections
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import ClusterKind
from hetsched.journal.audit import SYSTEM
from web.api.clusters import agent_authentication


@pytest.fixture
def asked(db: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the tokens that a live cluster's API server is asked to review; it knows none of them."""
    create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    shown: list[str] = []
    monkeypatch.setattr(connections, "api_of", lambda cluster: None)
    monkeypatch.setattr(service_account_tokens, "holder_of", lambda api, token: shown.append(token))
    monkeypatch.setattr(agent_authentication, "MOST_REVIEWS", 3)
    monkeypatch.setattr(agent_authentication.time, "time", lambda: 1000.5)
    cache.clear()
    return shown


def report_with(token: str) -> Any:
    return Client().post(
        "/api/v1/agent/reports/?cluster=live", "{}", content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )  # fmt: skip


def test_flood_gets_retry_after(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [report_with(f"aaaa.bbbb.cccc{number}") for number in range(5)]
    assert [answer.status_code for answer in answers] == [401, 401, 401, 503, 503]
    assert answers[-1].json()["code"] == "TokenNotReviewed"
    assert answers[-1]["Retry-After"] == "5"
    assert len(asked) == 3
    monkeypatch.setattr(agent_authentication.time, "time", lambda: 1001.5)
    assert report_with("aaaa.bbbb.dddd").status_code == 401
    assert len(asked) == 4


def test_rejected_token_is_not_reviewed_again_immediately(asked: list[str]) -> None:
    assert [report_with("aaaa.bbbb.cccc").status_code for _ in range(5)] == [401] * 5
    assert len(asked) == 1
