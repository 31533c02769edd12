"""From a submission to placements, reservations and events, by the scheduling task."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.node_loads import advance
from hetsched.journal.models import OutboxEvent
from hetsched.placement import actions
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Decision, Pod, Workload
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.queries.topics import snapshot
from hetsched.placement.scheduler_cache import cache_of
from hetsched.policies.actions import activate, save_draft
from hetsched.scheduling import scheduling_loop, worker_host
from hetsched.scheduling.leases import leading
from hetsched.scheduling.scheduling_loop import SchedulingLoop
from hetsched.scheduling.worker_host import WorkerHost
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.situations import ALICE, a_cluster, acquire_lease, placed, submitted


def _placements() -> dict[str, str | None]:
    pods = Pod.objects.exclude(workload=None).select_related("node")
    return {pod.name: pod.node.name if pod.node else None for pod in pods}


@pytest.mark.django_db(transaction=True)
def test_submission_is_decided_bound_and_published_without_another_call() -> None:
    cluster = a_cluster(a_node("n1").gpus(2), kind="demo")
    workload = submitted(cluster, a_pod("plain"), a_pod("card").gpu(1), a_pod("huge").cpu("64"), a_pod("bad").wrong())
    states = dict(Pod.objects.values_list("name", "state"))
    assert states == {"plain": "running", "card": "running", "huge": "never-fits", "bad": "misconfigured"}
    card = Pod.objects.get(name="card")
    assert card.allocation is not None
    assert [grant.index for grant in card.allocation.gpus] == [0]
    assert Workload.objects.get().state == "misconfigured"
    assert snapshot(f"workload:{workload.pk}").data["pods"]["default/huge"]["state"] == "never-fits"
    assert not OutboxEvent.objects.filter(published_at=None).exists()
    assert check_invariants() == []


@pytest.mark.django_db
def test_offline_cluster_placements_are_not_bound() -> None:
    submitted(a_cluster(), a_pod("p"))
    worker_host.run(Cluster.objects.get().pk)
    assert Pod.objects.get().state == "placed"


@pytest.mark.django_db
def test_pod_released_during_the_refresh_is_in_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster(a_node("n1"))
    (released,) = placed(cluster, "n1", a_pod("released"))
    submitted(cluster, a_pod("waiting"))
    loop = SchedulingLoop(WorkerHost(cluster.pk), cluster.pk, cluster.name, 500)
    due = loop._due_pods

    def after_release() -> Any:
        actions.reject(cluster.pk, [released.pk], reason="a test")
        monkeypatch.setattr(loop, "_due_pods", due)
        return due()

    monkeypatch.setattr(loop, "_due_pods", after_release)
    lease = acquire_lease(cluster)
    first, second = loop.iterate(lease), loop.iterate(lease)
    assert [result.waiting.spec.name for result in first.results] == ["waiting"]
    assert [result.waiting.spec.name for result in second.results] == ["released"]
    assert (first.more, second.more) == (True, False)
    assert _placements() == {"released": "n1", "waiting": "n1"}
    assert check_invariants() == []


@pytest.mark.django_db
def test_gang_waits_while_a_released_member_is_placed_in_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster(a_node("n1").cpu(4))
    members = [a_pod(name).cpu(1).gang("training", 2) for name in ("early", "late")]
    early, _ = placed(cluster, "n1", *members)
    late = Pod.objects.get(name="late")
    actions.reject(cluster.pk, [late.pk], reason="a test")
    loop = SchedulingLoop(WorkerHost(cluster.pk), cluster.pk, cluster.name, 500)
    due = loop._due_pods

    def after_release() -> Any:
        actions.reject(cluster.pk, [early.pk], reason="a test")
        monkeypatch.setattr(loop, "_due_pods", due)
        return due()

    monkeypatch.setattr(loop, "_due_pods", after_release)
    lease = acquire_lease(cluster)
    first, second = loop.iterate(lease), loop.iterate(lease)
    assert [result.waiting.spec.name for result in first.results] == []
    assert sorted(result.waiting.spec.name for result in second.results) == ["early", "late"]


@pytest.mark.django_db
@pytest.mark.parametrize("batch", [1, 3, 500])
def test_placements_equal_the_engines_for_any_batch_size(settings: Any, batch: int) -> None:
    settings.HETSCHED_BATCH = batch
    nodes = [a_node(f"n{n}").cpu(4 + n % 3).gpus(n % 2 * 2) for n in range(6)]
    pods = [_pod(number) for number in range(30)]
    cluster = a_cluster(*nodes)
    submitted(cluster, *pods)
    worker_host.run(cluster.pk)
    assert _placements() == _by_the_engine(nodes, pods)
    assert check_invariants() == []


def _pod(number: int) -> PodBuilder:
    pod = a_pod(f"p{number}").cpu(f"{300 + number % 5 * 400}m").priority(number % 3)
    return pod.gpu(1, milli=(1000, 300)[number % 2]) if number % 4 == 0 else pod


def _by_the_engine(nodes: list[NodeBuilder], pods: list[PodBuilder]) -> dict[str, str | None]:
    scheduler = Scheduler(
        ClusterState([node.build() for node in nodes]), compile_policy(BUILTIN["hetsched"], load_registry())
    )
    specs = sorted((pod.build() for pod in pods), key=scheduler.policy.sort_key)
    return {spec.name: scheduler.schedule(spec).node for spec in specs}


@pytest.mark.django_db
def test_pods_are_taken_by_priority_then_in_submission_order(settings: Any) -> None:
    settings.HETSCHED_BATCH = 1
    cluster = a_cluster(a_node("n1"))
    submitted(cluster, a_pod("low-1"), a_pod("low-2"))
    submitted(cluster, a_pod("high").priority(10))
    worker_host.run(cluster.pk)
    order = Decision.objects.order_by("id").values_list("pod_name", flat=True)
    assert list(order) == ["high", "low-1", "low-2"]


@pytest.mark.django_db
def test_unplaced_pod_is_placed_once_capacity_is_released() -> None:
    cluster = a_cluster(a_node("n1").cpu(2))
    first = placed(cluster, "n1", a_pod("first").cpu(2))
    submitted(cluster, a_pod("second").cpu(2))
    worker_host.run(cluster.pk)
    assert _placements()["second"] is None
    assert Pod.objects.get(name="second").state == "not-now"
    actions.release(cluster.pk, [first[0].pk], to=actions_state("succeeded"), reason="done")
    Pod.objects.update(not_before=None)
    worker_host.run(cluster.pk)
    assert _placements()["second"] == "n1"
    assert check_invariants() == []


def actions_state(name: str) -> Any:
    from hetsched.placement.lifecycle import State

    return State(name)


@pytest.mark.django_db
def test_activated_policy_applies_to_the_next_batch() -> None:
    cluster = a_cluster(a_node("n1").cpu(8), a_node("n2").cpu(8))
    placed(cluster, "n1", a_pod("there").cpu(4))
    submitted(cluster, a_pod("spread"))
    worker_host.run(cluster.pk)
    packing = PolicySpec("hetsched", (PluginUse("resource-fit"), PluginUse("tightest-fit")))
    version = save_draft(packing, actor=ALICE).version
    submitted(cluster, a_pod("still-spread"))
    worker_host.run(cluster.pk)
    activate("hetsched", version, actor=ALICE, reason="pack")
    submitted(cluster, a_pod("packed"))
    worker_host.run(cluster.pk)
    nodes = _placements()
    assert (nodes["spread"], nodes["still-spread"], nodes["packed"]) == ("n2", "n2", "n1")
    versions = dict(Decision.objects.exclude(pod_name="there").values_list("pod_name", "policy_version"))
    assert versions == {"spread": 1, "still-spread": 1, "packed": version}


@pytest.mark.django_db
def test_pods_of_one_batch_each_have_their_own_policy_and_see_each_other() -> None:
    cluster = a_cluster(a_node("n1").cpu(2), a_node("n2").cpu(2))
    submitted(cluster, a_pod("a").policy("first-fit").cpu(2), a_pod("b").cpu(2), a_pod("c").policy("spread"))
    worker_host.run(cluster.pk)
    assert _placements() == {"a": "n1", "b": "n2", "c": None}
    assert set(Decision.objects.values_list("policy_name", flat=True)) == {"first-fit", "hetsched", "spread"}


@pytest.mark.django_db
def test_pod_with_an_unknown_policy_is_misconfigured() -> None:
    cluster = a_cluster()
    submitted(cluster, a_pod("p").policy("no-such"))
    worker_host.run(cluster.pk)
    decision = Decision.objects.get()
    assert (decision.verdict, decision.reasons[0].code) == ("misconfigured", "PolicyUnknown")


@pytest.mark.django_db
def test_standby_decides_nothing_while_another_leads() -> None:
    cluster = a_cluster()
    acquire_lease(cluster)
    submitted(cluster)
    assert worker_host.run(cluster.pk) == 0
    assert Pod.objects.get().state == "pending"


@pytest.mark.django_db
def test_expired_lease_is_acquired_and_released_after_the_work() -> None:
    cluster = a_cluster()
    first = acquire_lease(cluster)
    Cluster.objects.update(leader_until="2020-01-01T00:00:00Z")
    submitted(cluster)
    assert worker_host.run(cluster.pk) == 1
    fresh = Cluster.objects.get()
    assert (fresh.leader_epoch, fresh.leader_until) == (first.epoch + 1, None)
    assert not leading.renew(first)


@pytest.mark.django_db
def test_lease_from_before_a_clock_reset_is_expired() -> None:
    cluster = a_cluster()
    lease = leading.take(cluster.pk, "another-process")
    assert lease is not None
    Cluster.objects.update(leader_until=timezone.now() + timedelta(hours=1))
    assert not leading.is_held(cluster.pk)
    assert leading.take(cluster.pk, "another") is not None
    assert not leading.renew(lease)


@pytest.mark.django_db
def test_lost_commit_check_is_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster(a_node("n1").cpu(2), a_node("n2").cpu(4))
    submitted(cluster, a_pod("p").cpu(2))
    real, tries = scheduling_loop.record, []

    def beaten(*arguments: Any, **named: Any) -> int:
        tries.append(named["revision"])
        if len(tries) == 1:
            placed(cluster, "n2", a_pod("foreign").cpu(4))  # another writer reserves on the better node first
        return real(*arguments, **named)

    monkeypatch.setattr(scheduling_loop, "record", beaten)
    monkeypatch.setattr("tests.situations.record", real)
    monkeypatch.setattr("tests.situations.first_active_pods", _only("foreign"))
    assert worker_host.run(cluster.pk) == 1
    assert len(tries) == 2
    assert _placements() == {"p": "n1", "foreign": "n2"}
    assert check_invariants() == []


@pytest.mark.django_db
def test_priority_change_after_the_queue_read_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster()
    workload = submitted(cluster, a_pod("p"))
    real, seen = scheduling_loop.first_active_pods, []

    def overtaken(*arguments: Any) -> Any:
        seen.append(found := real(*arguments))
        if len(seen) == 1:
            actions.set_priority(workload, 7, actor=ALICE, reason="urgent")
        return found

    monkeypatch.setattr(scheduling_loop, "first_active_pods", overtaken)
    assert worker_host.run(cluster.pk) == 1
    with cache_of(cluster.pk).locked_snapshot() as kept:
        assert kept.state.placed_pods["default/p"].pod.priority == 7
        assert kept.state.digest() == load_state(cluster.pk).state.digest()


def _only(name: str) -> Any:
    real = scheduling_loop.first_active_pods
    return lambda *arguments: [pod for pod in real(*arguments) if pod.spec.name == name]


@pytest.mark.django_db
def test_pods_submitted_during_a_batch_are_decided_together(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster()
    submitted(cluster, a_pod("first"))
    real, batches, rests = scheduling_loop.record, [], []

    def recorded(cluster_id: int, results: Any, **named: Any) -> int:
        batches.append([result.waiting.spec.name for result in results])
        if len(batches) == 1:
            submitted(cluster, a_pod("meanwhile"))
        return real(cluster_id, results, **named)

    def rest(seconds: float) -> None:
        rests.append(seconds)
        submitted(cluster, a_pod("later"))

    monkeypatch.setattr(scheduling_loop, "record", recorded)
    monkeypatch.setattr(worker_host.time, "sleep", rest)
    assert worker_host.run(cluster.pk) == 3
    assert batches == [["first"], ["meanwhile", "later"]]
    assert len(rests) == 1
    assert 0 < rests[0] <= worker_host.LONGEST_REST_SECONDS


@pytest.mark.django_db
def test_single_pod_and_full_batches_do_not_wait(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    monkeypatch.setattr(worker_host.time, "sleep", lambda seconds: pytest.fail("it rests"))
    settings.HETSCHED_BATCH = 2
    cluster = a_cluster()
    submitted(cluster, a_pod("alone"))
    assert worker_host.run(cluster.pk) == 1
    for number in range(4):
        submitted(cluster, a_pod(f"p{number}"))
    assert worker_host.run(cluster.pk) == 4


@pytest.mark.django_db
def test_repeated_commit_conflicts_leave_the_pods_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster()
    submitted(cluster)

    tries: list[int] = []

    def beaten(cluster_id: int, *arguments: Any, **named: Any) -> int:
        tries.append(advance(cluster_id).revision)
        assert len(tries) < 100
        raise actions.Conflict("always")

    monkeypatch.setattr(scheduling_loop, "record", beaten)
    monkeypatch.setattr(worker_host.time, "sleep", lambda seconds: None)
    assert worker_host.run(cluster.pk) == 0
    assert Pod.objects.get().state == "pending"
    assert Node.objects.get().pods == 0


@pytest.mark.django_db
def test_pod_with_an_engine_error_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    # 4 CPUs: the reservation of the failed decision is free for the next pod immediately.
    cluster = a_cluster(a_node("n1").cpu(4))
    submitted(cluster, a_pod("before"), a_pod("poison").cpu(3), a_pod("after").cpu(3))
    real = Scheduler.schedule

    def failing(self: Scheduler, pod: Any, **more: Any) -> Any:
        outcome = real(self, pod, **more)
        if pod.name == "poison":
            raise RuntimeError("no")  # after the reservation: the worst moment
        return outcome

    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "schedule", failing)
        worker_host.run(cluster.pk)
    states = dict(Pod.objects.values_list("name", "state"))
    assert states == {"before": "placed", "poison": "not-now", "after": "placed"}
    assert Decision.objects.get(pod_name="poison").reasons[0].code == "EngineError"
    assert check_invariants() == []
    actions.release(cluster.pk, [Pod.objects.get(name="after").pk], to=State.SUCCEEDED, reason="done")
    Pod.objects.filter(name="poison").update(queued=True, not_before=None)
    worker_host.run(cluster.pk)
    assert Pod.objects.get(name="poison").state == "placed"


@pytest.mark.django_db
def test_decision_has_its_state_and_the_best_nodes() -> None:
    cluster = a_cluster(a_node("n1").cpu(4), a_node("n2").cpu(8), a_node("n3").cpu(16))
    submitted(cluster, a_pod("p"))
    worker_host.run(cluster.pk)
    decision = Decision.objects.get()
    assert decision.cluster_revision == Cluster.objects.get().revision - 1
    assert [row.name for row in decision.top] == ["n3", "n2", "n1"]
    assert decision.node_name == "n3"
    assert decision.policy_rule == "cluster"
