"""`GET queue/`: positions in the order of the cluster's default policy."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.engine.plugins.priority.qos_sort import QosSort
from hetsched.placement.models import Pod
from hetsched.placement.queries import pending_order
from hetsched.placement.scheduler_cache import cache_of
from hetsched.placement.scheduling_queue.active_queue import first_active_pods
from hetsched.policies.actions import activate, save_draft
from tests.builders import a_pod
from tests.situations import ALICE, submitted

from .conftest import Api


@pytest.fixture
def waiting(cluster: Any) -> Any:
    """Submit three pending pods of one namespace, then a gang of two and one urgent pod of another."""
    submitted(cluster, *(a_pod(f"flood-{number}", "flood") for number in range(3)))
    submitted(cluster, a_pod("g-0", "team").gang("g", 2), a_pod("g-1", "team").gang("g", 2))
    submitted(cluster, a_pod("urgent", "team").priority(5))
    return cluster


def ordered_by(name: str) -> None:
    spec = PolicySpec("hetsched", (PluginUse(name), PluginUse("resource-fit")))
    activate("hetsched", save_draft(spec, actor=ALICE).version, actor=ALICE, reason="order")


def test_places_follow_priority_then_submission(waiting: Any, operator: Api) -> None:
    places = operator.get("queue/")["items"]
    assert [(place["position"], place["pod"]) for place in places] == [
        (1, "team/urgent"), (2, "flood/flood-0"), (3, "flood/flood-1"), (4, "flood/flood-2"),
        (5, "team/g-0"), (6, "team/g-1"),
    ]  # fmt: skip
    assert (places[4]["gang"], places[0]["gang"], places[0]["priority"]) == ("team/g", None, 5)


def test_places_follow_the_policy(waiting: Any, operator: Api) -> None:
    ordered_by("fair-share")
    pods = [place["pod"] for place in operator.get("queue/?limit=4")["items"]]
    # No pod is placed. The urgent pod comes first; then flood, whose share of 0 is below that of team.
    assert pods == ["team/urgent", "flood/flood-0", "flood/flood-1", "team/g-0"]


def test_pod_that_is_not_due_has_no_position_but_a_time(waiting: Any, operator: Api) -> None:
    now = timezone.now()
    soon, later = now + timedelta(seconds=8), now + timedelta(seconds=30)
    rows = Pod.objects.filter(namespace="flood")
    rows.filter(name="flood-0").update(not_before=soon, attempts=4)
    rows.filter(name="flood-1").update(images_until=later)
    # Rejected 100 s ago, without a time to wait for, so it is flushed after 300 s.
    rows.filter(name="flood-2").update(
        queued=False, state="not-now", tried_at=now - timedelta(seconds=100), helped_by=1
    )
    Pod.objects.filter(name="urgent").update(queued=False)
    found = operator.get("queue/")["items"]
    assert [(item["position"], item["pod"], item["standing"]) for item in found] == [
        (1, "team/g-0", "due"), (2, "team/g-1", "due"), (None, "flood/flood-0", "back-off"),
        (None, "flood/flood-1", "images"), (None, "flood/flood-2", "resting"), (None, "team/urgent", "gated"),
    ]  # fmt: skip
    again = [item["againAt"] and datetime.fromisoformat(item["againAt"]) for item in found]
    assert again == [None, None, soon, later, now + timedelta(seconds=200), None]


def test_queue_state_filter_lists_its_pods(waiting: Any, operator: Api) -> None:
    Pod.objects.filter(name="urgent").update(queued=False)
    assert [item["pod"] for item in operator.get("queue/?standing=gated")["items"]] == ["team/urgent"]
    assert len(operator.get("queue/?standing=due")["items"]) == 5
    assert operator("GET", "queue/?standing=lost", status=400).json()["code"] == "QueryInvalid"


def test_requests_are_read_once_for_any_number_of_pages(
    waiting: Any, operator: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered_by("qos-sort")
    asked: list[str] = []
    sort_key = QosSort.sort_key
    monkeypatch.setattr(QosSort, "sort_key", lambda self, pod: (asked.append(pod.key), sort_key(self, pod))[1])
    with cache_of(waiting.pk).locked_snapshot():
        policy = cache_of(waiting.pk).default_policy()
    assert policy is not None
    first = [pod.spec.key for pod in first_active_pods(waiting.pk, policy, 2)]
    assert (first, len(asked)) == (["flood/flood-0", "team/urgent"], 6)
    Pod.objects.filter(name="urgent").update(queued=False)
    Pod.objects.filter(name="g-1").update(priority=9)  # its position is computed again, together with its gang
    again = [pod.spec.key for pod in first_active_pods(waiting.pk, policy, 1)]
    assert (again[0], len(asked)) == ("flood/flood-0", 7)


def test_limited_token_sees_global_positions_of_its_pods(waiting: Any, api: Callable[..., Api]) -> None:
    places = api("viewer", "team").get("queue/")["items"]
    assert [(place["position"], place["pod"]) for place in places] == [
        (1, "team/urgent"), (5, "team/g-0"), (6, "team/g-1"),
    ]  # fmt: skip


def test_limit_counts_only_pods_that_a_limited_token_sees(
    waiting: Any, api: Callable[..., Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the first `limit` pods of all namespaces were chosen, and then those of others were left out."""
    team = api("viewer", "team")
    seen = [(1, "team/urgent"), (5, "team/g-0")]
    assert [(place["position"], place["pod"]) for place in team.get("queue/?limit=2")["items"]] == seen
    Pod.objects.filter(namespace="flood").update(queued=False)
    Pod.objects.filter(name="g-1").update(not_before=timezone.now() + timedelta(minutes=1))
    places = team.get("queue/?standing=back-off&limit=1")["items"]
    assert [place["pod"] for place in places] == ["team/g-1"]
    Pod.objects.filter(namespace="flood").update(queued=True, priority=9)
    monkeypatch.setattr(pending_order, "MOST_FORECAST", 2)
    places = team.get("queue/?limit=2")["items"]
    assert [(place["position"], place["pod"]) for place in places] == [(None, "team/urgent"), (None, "team/g-0")]
