"""A submission is validated, written completely or not at all, and a repetition gets the same response."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.contracts.errors import InputError
from hetsched.inventory.models import Cluster
from hetsched.journal.models import AuditEntry, OutboxEvent
from hetsched.placement import dispatch
from hetsched.placement.actions import Conflict, cancel, submissions, submit
from hetsched.placement.models import IdempotencyKey, Pod, Workload
from tests.builders import a_pod
from tests.situations import ALICE, a_cluster, placed, submitted

pytestmark = pytest.mark.django_db


def _submit(cluster: Cluster, *names: str, **more: Any) -> Any:
    return submit(cluster, [a_pod(name).build() for name in names], actor=ALICE, **more)


def test_pods_wait_in_submission_order_with_their_audit_entry() -> None:
    cluster = a_cluster()
    workload = submitted(cluster, a_pod("b"), a_pod("a"))
    assert [pod.name for pod in workload.pods.order_by("id")] == ["b", "a"]
    assert {pod.state for pod in workload.pods.all()} == {"pending"}
    assert AuditEntry.objects.get(action="workload.submit").object_name == workload.pk


def test_scheduler_is_woken_once_after_the_commit(
    woken: list[tuple[str, list[int]]], django_capture_on_commit_callbacks: Any
) -> None:
    cluster = a_cluster()
    with django_capture_on_commit_callbacks(execute=True):
        _submit(cluster, "p")
        assert woken == []
    assert woken == [(dispatch.SCHEDULE, [cluster.pk])]


def test_submission_keeps_the_cluster_revision() -> None:
    cluster = a_cluster()
    _submit(cluster, "p")
    assert Cluster.objects.get(pk=cluster.pk).revision == cluster.revision


def test_repeated_key_and_body_get_the_first_response() -> None:
    cluster = a_cluster()
    first = _submit(cluster, "p", owner="ci", idempotency_key="k", body_hash="h")
    again = _submit(cluster, "p", owner="ci", idempotency_key="k", body_hash="h")
    assert (again.response, again.workload_id) == (first.response, first.workload_id)
    assert (first.replayed, again.replayed) == (False, True)
    assert Workload.objects.count() == 1


def test_same_key_with_another_body_is_refused() -> None:
    cluster = a_cluster()
    _submit(cluster, "p", owner="ci", idempotency_key="k", body_hash="h")
    with pytest.raises(InputError) as refused:
        _submit(cluster, "q", owner="ci", idempotency_key="k", body_hash="other")
    assert refused.value.code == "IdempotencyKeyReused"


def test_same_key_of_another_owner_is_accepted() -> None:
    cluster = a_cluster()
    _submit(cluster, "p", owner="ci", idempotency_key="k", body_hash="h")
    assert not _submit(cluster, "q", owner="lab", idempotency_key="k", body_hash="h2").replayed


def test_concurrent_request_with_one_key_gets_the_first_response(monkeypatch: pytest.MonkeyPatch) -> None:
    from hetsched.placement.actions import submissions

    cluster = a_cluster()
    first = _submit(cluster, "p", owner="ci", idempotency_key="k", body_hash="h")
    looked: list[bool] = []
    real = submissions.stored_response

    def blind_once(owner: str, key: str, body_hash: str) -> Any:
        looked.append(True)
        return None if len(looked) == 1 else real(owner, key, body_hash)

    monkeypatch.setattr(submissions, "stored_response", blind_once)
    second = _submit(cluster, "p", owner="ci", idempotency_key="k", body_hash="h")
    assert second.replayed
    assert second.response == first.response
    assert (Workload.objects.count(), IdempotencyKey.objects.count()) == (1, 1)


def test_name_is_in_use_while_its_pod_exists() -> None:
    cluster = a_cluster()
    workload = submitted(cluster, a_pod("p"))
    with pytest.raises(InputError, match=f"default/p already exists in workload {workload.pk}"):
        _submit(cluster, "other", "p")
    assert Pod.objects.count() == 1
    cancel(workload, actor=ALICE, reason="again")
    _submit(cluster, "p")


def test_name_released_after_the_rejection_is_still_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster()
    submitted(cluster, a_pod("p"))
    # The name becomes free between the unique violation and the query for its holder.
    monkeypatch.setattr(submissions, "_check_names_unused", lambda cluster, pods: None)
    with pytest.raises(Conflict):
        submitted(cluster, a_pod("p"))


@pytest.mark.parametrize(
    ("pods", "more", "code"),
    [
        ([], {}, "WorkloadEmpty"),
        ([a_pod("p").build(), a_pod("p").build()], {}, "PodDuplicate"),
        ([a_pod("p").having(node_name="n1").build()], {}, "PodBound"),
        ([a_pod("p").build()], {"priority": 2**31}, "PriorityInvalid"),
        ([a_pod("p").build()], {"policy": "no-such"}, "PolicyUnknown"),
    ],
)
def test_invalid_submissions_are_rejected_without_rows(pods: Any, more: Any, code: str) -> None:
    cluster = a_cluster()
    events = OutboxEvent.objects.count()
    with pytest.raises(InputError) as refused:
        submit(cluster, pods, actor=ALICE, **more)
    assert refused.value.code == code
    assert (Workload.objects.count(), Pod.objects.count(), OutboxEvent.objects.count()) == (0, 0, events)


def test_priority_of_the_request_overrides_the_pods() -> None:
    workload = submitted(a_cluster(), a_pod("p").priority(5), priority=9)
    pod = workload.pods.get()
    assert (pod.priority, pod.spec.priority, workload.priority) == (9, 9, 9)


def test_same_pod_name_in_another_cluster_is_allowed() -> None:
    placed(a_cluster(), "n1", a_pod("p"))
    submitted(a_cluster(name="other"), a_pod("p"))
