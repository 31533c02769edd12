"""Submissions share the lock of their namespace while the queue is much shorter than the limit of a namespace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.allowance import Allowance
from hetsched.inventory.models import Cluster
from hetsched.placement import quotas
from hetsched.placement.actions import submit
from tests.builders import a_pod
from tests.situations import ALICE, a_cluster
from web.api.problems import RequestRefused
from web.api.workloads import submissions

pytestmark = pytest.mark.django_db
EXCLUSIVE, SHARED = [False], [True]


@pytest.fixture
def locks(monkeypatch: pytest.MonkeyPatch, settings: Any) -> list[bool]:
    """Return whether each lock was shared; up to 9 queued pods of a namespace with a limit of 30, locks are shared."""
    found: list[bool] = []

    def lock(names: Iterable[str], *, shared: bool = False) -> None:
        found.append(shared)

    monkeypatch.setattr(quotas, "lock", lock)
    monkeypatch.setattr(quotas, "_RESERVED_PODS", 10)
    monkeypatch.setattr(quotas, "_last_counts", {})
    settings.HETSCHED_MOST_WAITING_PODS_PER_NAMESPACE = 30
    return found


def _submit(cluster: Cluster, locks: list[bool], name: str, pods: int = 1, **more: Any) -> list[bool]:
    """Submit pods; return whether each lock of the submission was shared."""
    locks.clear()
    submit(cluster, [a_pod(f"{name}-{number}").build() for number in range(pods)], actor=ALICE, **more)
    return list(locks)


def test_few_pods_share_the_lock_after_a_count(locks: list[bool]) -> None:
    cluster = a_cluster()
    assert _submit(cluster, locks, "first") == EXCLUSIVE
    assert _submit(cluster, locks, "second") == SHARED


def test_many_pods_do_not_share_the_lock(locks: list[bool]) -> None:
    cluster = a_cluster()
    _submit(cluster, locks, "first")
    assert _submit(cluster, locks, "many", pods=quotas._FEW_PODS + 1) == EXCLUSIVE


def test_owners_with_a_quota_do_not_share_the_lock(locks: list[bool]) -> None:
    cluster = a_cluster()
    _submit(cluster, locks, "first")
    assert _submit(cluster, locks, "bounded", owner="ci", allowance=Allowance({"pods": 5})) == EXCLUSIVE


def test_lock_is_exclusive_near_the_limit(locks: list[bool]) -> None:
    cluster = a_cluster()
    _submit(cluster, locks, "first", pods=10)
    assert _submit(cluster, locks, "second") == EXCLUSIVE


def test_pods_of_other_processes_make_the_lock_exclusive(locks: list[bool]) -> None:
    cluster = a_cluster()
    _submit(cluster, locks, "first", pods=29)
    quotas._last_counts[cluster.pk] = 0, 0.0
    assert _submit(cluster, locks, "second") == SHARED + EXCLUSIVE
    quotas._last_counts[cluster.pk] = 0, 0.0
    with pytest.raises(InputError) as refused:
        _submit(cluster, locks, "third")
    assert (refused.value.code, locks) == ("NamespaceFull", SHARED + EXCLUSIVE)


def test_queue_that_was_short_is_counted_after_a_second(monkeypatch: pytest.MonkeyPatch, locks: list[bool]) -> None:
    cluster = a_cluster()
    assert not quotas.was_queue_short(cluster, 100)
    _submit(cluster, locks, "first")
    assert quotas.was_queue_short(cluster, 100)
    assert not quotas.was_queue_short(cluster, 11)  # at most the reserve is missing
    monkeypatch.setattr(quotas, "COUNTED_SECONDS", 0.0)
    assert not quotas.was_queue_short(cluster, 100)


def test_limit_of_the_cluster_holds_for_many_namespaces(
    monkeypatch: pytest.MonkeyPatch, locks: list[bool], settings: Any
) -> None:
    """Regression: a count that ended at the limit of a namespace was used as the length of the queue."""
    settings.HETSCHED_MOST_WAITING_PODS_PER_NAMESPACE, settings.HETSCHED_MOST_WAITING_PODS = 50, 200
    cluster = a_cluster()

    def submit_to(namespace: str) -> None:
        submissions._limit_queue(cluster, lambda: False)
        pods = [a_pod(f"p{number}", namespace).build() for number in range(20)]
        submit(cluster, pods, actor=ALICE)

    for number in range(10):  # 10 times 20 pods
        submit_to(f"team-{number}")
    with pytest.raises(RequestRefused) as refused:
        submit_to("late")
    assert refused.value.code == "TooManyWaiting"
