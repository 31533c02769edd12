"""After the decision: pods are bound, run and end; exactly their resources are free again for other pods."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.allocation import CardGrant
from hetsched.inventory.models import Cluster, Node
from hetsched.journal.models import AuditEntry
from hetsched.placement import dispatch
from hetsched.placement.actions import (
    Conflict,
    begin_binding,
    cancel,
    confirm,
    reject,
    release,
    retry,
    set_priority,
    start,
)
from hetsched.placement.actions.change import MOST_STATES
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod, Reservation, ReservedCard, Workload
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.scheduling_queue.active_queue import first_active_pods
from tests.builders import a_node, a_pod
from tests.situations import ALICE, a_cluster, placed, placing, recorded, refusing, submitted

pytestmark = pytest.mark.django_db
SHARE = CardGrant(0, 300, 12288)


def _load() -> list[tuple[Any, ...]]:
    nodes = Node.objects.order_by("name")
    cluster = Cluster.objects.get()
    loads = [(node.name, +_counts(node.requested), node.pods, node.gpu_milli_used) for node in nodes]
    return [*loads, (+_counts(cluster.requested), cluster.gpu_milli_used)]


def _counts(amounts: dict[str, int]) -> Any:
    from collections import Counter

    return Counter(amounts)


def _run(cluster: Cluster, pods: list[Pod]) -> None:
    ids = [pod.pk for pod in pods]
    for step in (begin_binding, confirm, start):
        step(cluster.pk, ids)


def test_pod_passes_placed_binding_bound_and_running() -> None:
    cluster = a_cluster()
    pods = placed(cluster, "n1", a_pod("p"))
    seen = []
    for step in (begin_binding, confirm, start):
        step(cluster.pk, [pods[0].pk])
        seen.append((Pod.objects.get().state, Workload.objects.get().state))
    assert seen == [("binding", "binding"), ("bound", "bound"), ("running", "running")]
    assert [state for state, _ in Workload.objects.get().history] == [
        "pending",
        "placed",
        "binding",
        "bound",
        "running",
    ]
    assert Pod.objects.get().started_at is not None


def test_history_keeps_the_first_and_the_latest_states() -> None:
    cluster = a_cluster()
    (pod,) = placed(cluster, "n1", a_pod("p"))
    first = Workload.objects.get().history[0]
    filled = [first, *(["binding", f"2026-11-21T10:00:00.{number:03}Z"] for number in range(MOST_STATES - 1))]
    Workload.objects.update(history=filled)
    begin_binding(cluster.pk, [pod.pk])
    history = Workload.objects.get().history
    assert len(history) == MOST_STATES
    assert history[:-1] == [first, *filled[2:]]
    assert history[-1][0] == "binding"


def test_transition_out_of_order_is_a_conflict_and_changes_no_pod() -> None:
    cluster = a_cluster()
    pod, two = placed(cluster, "n1", a_pod("one"), a_pod("two"))
    begin_binding(cluster.pk, [pod.pk])
    with pytest.raises(Conflict):
        begin_binding(cluster.pk, [pod.pk, two.pk])
    assert Pod.objects.get(pk=two.pk).state == "placed"


def test_release_frees_exactly_the_resources_of_the_pod() -> None:
    cluster = a_cluster(a_node("n1").gpus(1), a_node("n2"))
    placed(cluster, "n1", a_pod("stays").cpu("700m"))
    before = _load()
    submitted(cluster, a_pod("goes").cpu("1300m").memory("3Gi"))
    recorded(cluster, placing(cluster, "n1", SHARE))
    assert _load() != before
    pod = Pod.objects.get(name="goes")
    _run(cluster, [pod])
    assert Workload.objects.get(pk=pod.workload_id).finished_at is None
    release(cluster.pk, [pod.pk], to=State.SUCCEEDED, reason="completed")
    assert _load() == before
    assert Reservation.objects.get(pod=pod).release_reason == "completed"
    assert not ReservedCard.objects.filter(active=True).exists()
    assert Pod.objects.get(pk=pod.pk).finished_at is not None
    assert Workload.objects.get(pk=pod.workload_id).finished_at is not None
    assert check_invariants() == []


def test_released_twice_is_a_conflict_and_frees_once() -> None:
    cluster = a_cluster()
    pods = placed(cluster, "n1", a_pod("p"))
    release(cluster.pk, [pods[0].pk], to=State.FAILED, reason="exit 1")
    with pytest.raises(Conflict):
        release(cluster.pk, [pods[0].pk], to=State.FAILED, reason="exit 1")
    assert check_invariants() == []


@pytest.mark.django_db(transaction=True)
def test_release_requeues_pods_that_did_not_fit(woken: list[tuple[str, list[int]]]) -> None:
    cluster = a_cluster()
    pods = placed(cluster, "n1", a_pod("p"))
    submitted(cluster, a_pod("waits"))
    recorded(cluster, refusing(cluster))
    woken.clear()
    release(cluster.pk, [pods[0].pk], to=State.SUCCEEDED, reason="done")
    waits = Pod.objects.get(name="waits")
    assert (waits.state, waits.queued) == ("not-now", True)
    assert woken == [(dispatch.SCHEDULE, [cluster.pk])]
    assert first_active_pods(cluster.pk, None, 500) == []  # it is still backing off
    Pod.objects.update(not_before=None)
    assert [pod.spec.name for pod in first_active_pods(cluster.pk, None, 500)] == ["waits"]


def test_changed_inventory_requeues_even_never_fitting_pods_at_once() -> None:
    from hetsched.contracts.api.decision import Verdict
    from hetsched.inventory.actions import cordon

    cluster = a_cluster()
    submitted(cluster, a_pod("small"))
    recorded(cluster, refusing(cluster, Verdict.NEVER_FITS))
    cordon(cluster, "n1", actor=ALICE, reason="maintenance")
    assert [pod.spec.name for pod in first_active_pods(cluster.pk, None, 500)] == ["small"]


def test_rejected_placement_is_pending_without_a_reservation() -> None:
    cluster = a_cluster()
    before = _load()
    pods = placed(cluster, "n1", a_pod("p"))
    begin_binding(cluster.pk, [pods[0].pk])
    reject(cluster.pk, [pods[0].pk], reason="node is gone")
    pod = Pod.objects.get()
    assert (pod.state, pod.node, pod.allocation, pod.message) == ("pending", None, None, "node is gone")
    assert _load() == before
    assert [item.pod_id for item in first_active_pods(cluster.pk, None, 500)] == [pod.pk]
    assert check_invariants() == []


def test_cancel_ends_and_releases_all_pods() -> None:
    cluster = a_cluster()
    before = _load()
    workload = submitted(cluster, a_pod("runs"), a_pod("waits"))
    recorded(cluster, placing(cluster, "n1")[:1])
    cancelled = cancel(workload, actor=ALICE, reason="not needed")
    assert cancelled.state == "cancelled"
    assert set(Pod.objects.values_list("state", "queued")) == {("cancelled", False)}
    assert _load() == before
    entry = AuditEntry.objects.get(action="workload.cancel")
    assert (entry.actor, entry.reason, entry.details) == ("alice", "not needed", {"pods": 2})
    assert check_invariants() == []


def test_cancelling_again_changes_nothing() -> None:
    workload = submitted(a_cluster())
    cancel(workload, actor=ALICE, reason="once")
    again = cancel(workload, actor=ALICE, reason="twice")
    assert (again.state, [state for state, _ in again.history]) == ("cancelled", ["pending", "cancelled"])


def test_retry_puts_refused_pods_back_into_the_queue_at_once() -> None:
    cluster = a_cluster()
    workload = submitted(cluster)
    recorded(cluster, refusing(cluster))
    assert retry(workload, actor=ALICE, reason="fixed it").state == "pending"
    assert len(first_active_pods(cluster.pk, None, 500)) == 1


def test_retry_of_a_failed_pod_requires_a_free_name() -> None:
    cluster = a_cluster()
    workload = submitted(cluster, a_pod("p"))
    recorded(cluster, placing(cluster, "n1"))
    release(cluster.pk, [workload.pods.get().pk], to=State.FAILED, reason="exit 1")
    submitted(cluster, a_pod("p"))
    with pytest.raises(InputError) as refused:
        retry(workload, actor=ALICE, reason="again")
    assert refused.value.code == "PodExists"


def test_retry_without_rejected_pods_is_rejected() -> None:
    with pytest.raises(InputError) as refused:
        retry(submitted(a_cluster()), actor=ALICE, reason="why not")
    assert refused.value.code == "NothingToRetry"


def test_priority_changes_the_order_of_pending_pods_and_the_engines_view() -> None:
    cluster = a_cluster()
    submitted(cluster, a_pod("first"))
    second = submitted(cluster, a_pod("second"))
    set_priority(second, 7, actor=ALICE, reason="urgent")
    assert [(pod.spec.name, pod.spec.priority) for pod in first_active_pods(cluster.pk, None, 500)] == [
        ("second", 7),
        ("first", 0),
    ]


@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1])
def test_priority_outside_32_bits_is_rejected(priority: int) -> None:
    workload = submitted(a_cluster(), a_pod("p"))
    with pytest.raises(InputError) as refused:
        set_priority(workload, priority, actor=ALICE, reason="urgent")
    assert refused.value.code == "PriorityInvalid"
    assert Pod.objects.get().priority == 0


def test_rebuilt_state_has_the_changed_priority() -> None:
    cluster = a_cluster()
    workload = submitted(cluster, a_pod("p"))
    set_priority(workload, 7, actor=ALICE, reason="urgent")
    recorded(cluster, placing(cluster, "n1"))
    assert load_state(cluster.pk).state.placed_pods["default/p"].pod.priority == 7


@pytest.mark.parametrize("act", [cancel, retry])
def test_actions_require_a_reason(act: Any) -> None:
    with pytest.raises(InputError) as refused:
        act(submitted(a_cluster()), actor=ALICE, reason="  ")
    assert refused.value.code == "ReasonMissing"
