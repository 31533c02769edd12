"""Evictions of one group are charged to disruption budgets before the first of them is sent."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import ApiFailure
from hetsched.adapters.kubernetes.pods.eviction import EvictionResult, EvictionTarget, charge_budgets
from tests.budget_server import BudgetServer

ASKED, REFUSED, UNKNOWN = EvictionResult.ASKED, EvictionResult.REFUSED, EvictionResult.UNKNOWN
READY = {"a": "uid-a", "b": "uid-b", "c": "uid-c"}


def results(namespace: str = "default", **more: Any) -> list[EvictionResult]:
    server = BudgetServer(**{"allowed": 0, "ready": READY, **more})
    victims = [EvictionTarget(number, namespace, name, f"uid-{name}", "") for number, name in enumerate("abc")]
    (responses,) = charge_budgets(server, [victims])  # type: ignore[arg-type]
    return [one.result for one in responses]


@pytest.mark.parametrize(("allowed", "expected"), [(0, 0), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_evictions_up_to_the_budget_are_sent(allowed: int, expected: int) -> None:
    assert results(allowed=allowed) == [ASKED] * expected + [REFUSED] * (3 - expected)


@pytest.mark.parametrize(
    "more",
    [
        {"namespace": "other"},
        {"ready": {}},
        {"ready": dict.fromkeys("abc", "uid of another pod")},
        {"metadata": {"labels": {"app": "other"}}},
        {"metadata": {"labels": None}},
        {"metadata": {"deletionTimestamp": "2026-11-21T10:00:00Z"}},
        {"status": {"phase": "Pending"}},
        {"status": {"conditions": None}},
        {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
    ],
)
def test_pods_that_need_no_allowed_disruption_are_not_charged(more: dict[str, Any]) -> None:
    assert results(**more) == [ASKED] * 3


def test_budgets_that_cannot_be_read_leave_the_result_unknown() -> None:
    assert results(failure=ApiFailure(503, "ServiceUnavailable", "busy")) == [UNKNOWN] * 3


def test_group_with_a_refused_victim_is_not_charged() -> None:
    """Regression: the victims of a group that was not evicted still used up the budget of the next group."""
    ready = {name: f"uid-{name}" for name in "abcdef"}
    targets = {name: EvictionTarget(number, "default", name, f"uid-{name}", "") for number, name in enumerate(ready)}
    groups = [[targets[name] for name in names] for names in ("abc", "de", "f")]
    responses = charge_budgets(BudgetServer(allowed=2, ready=ready), groups)  # type: ignore[arg-type]
    assert [[one.result for one in group] for group in responses] == [
        [ASKED, ASKED, REFUSED], [ASKED, ASKED], [REFUSED],
    ]  # fmt: skip
