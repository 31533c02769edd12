"""A recorded decision can be computed again: same state, same policy revision, same winner."""

from __future__ import annotations

import msgspec
import pytest

from hetsched.contracts.errors import InputError
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.inventory.actions import cordon
from hetsched.placement.actions import release
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Decision, Pod
from hetsched.placement.queries.decision_matrix import matrix_of, scheduler_before
from tests.builders import a_node, a_pod
from tests.situations import ALICE, a_cluster, submitted
from tests.walk import Walk
from workers import schedule

pytestmark = pytest.mark.django_db


def test_batch_decisions_replay_with_equal_node_and_score() -> None:
    cluster = a_cluster(*(a_node(f"n{number}").gpus(number % 3) for number in range(5)))
    pods = [a_pod(f"p{number}").cpu("700m") if number % 2 else a_pod(f"p{number}").gpu(1) for number in range(12)]
    submitted(cluster, *pods)
    schedule.run(cluster.pk)
    placed = Decision.objects.filter(verdict="placed")
    assert placed.count() >= 8
    for decision in placed:
        rows = matrix_of(decision)
        assert len(rows) == 5
        best = rows[0]
        assert (best.name, best.rank) == (decision.node_name, 1)
        assert [(row.name, row.total) for row in rows[: len(decision.top)]] == [
            (row.name, pytest.approx(row.total)) for row in decision.top
        ]
        weights = sum(score.weight for score in best.scores)
        assert best.total is not None
        assert best.total / weights == pytest.approx(decision.score)


def test_decisions_replay_with_the_workload_mix_of_their_time() -> None:
    cluster = a_cluster(*(a_node(f"n{number}").gpus(2) for number in range(4)))
    sizes = (470, 810, 320)
    for batch in range(3):
        pods = [a_pod(f"p{batch}-{i}").gpu(1, milli=sizes[(batch + i) % 3]).policy("hetsched-gpu") for i in range(3)]
        submitted(cluster, *pods)
        schedule.run(cluster.pk)
    placed = Decision.objects.filter(verdict="placed", policy_name="hetsched-gpu")
    assert placed.count() == 9
    for decision in placed:
        rows = matrix_of(decision)
        assert [(row.name, row.total) for row in rows[: len(decision.top)]] == [
            (row.name, row.total) for row in decision.top
        ]
    used = {score.plugin for decision in placed for score in matrix_of(decision)[0].scores}
    assert {"gpu-gradient", "gpu-headroom"} <= used


def test_decision_replays_after_later_placements_and_releases() -> None:
    cluster = a_cluster(a_node("n1"), a_node("n2"))
    submitted(cluster, a_pod("first"))
    schedule.run(cluster.pk)
    first = Decision.objects.get()
    before = matrix_of(first)
    submitted(cluster, *(a_pod(f"later-{number}").cpu("2") for number in range(3)))
    schedule.run(cluster.pk)
    release(cluster.pk, [Pod.objects.get(name="first").pk], to=State.SUCCEEDED, reason="done")
    assert matrix_of(first) == before


def test_claim_that_the_binding_named_does_not_change_the_replay() -> None:
    cluster = a_cluster(a_node("n1").offering("example.com/card", 1))
    submitted(cluster, a_pod("p").requesting("example.com/card", 1))
    schedule.run(cluster.pk)
    before = matrix_of(Decision.objects.get())
    pod = Pod.objects.get()
    Pod.objects.update(spec=msgspec.structs.replace(pod.spec, extended_claim="named"))
    assert matrix_of(Decision.objects.get()) == before


def test_rejection_replays_with_its_reasons() -> None:
    cluster = a_cluster(a_node("n1"), a_node("n2").arch("arm64"))
    submitted(cluster, a_pod("huge").cpu("64"))
    schedule.run(cluster.pk)
    decision = Decision.objects.get()
    assert decision.verdict == "never-fits"
    assert diagnose(scheduler_before(decision), decision.pod.spec).reasons == decision.reasons


def test_replay_after_an_inventory_change_is_refused() -> None:
    cluster = a_cluster(a_node("n1"), a_node("n2"))
    submitted(cluster)
    schedule.run(cluster.pk)
    cordon(cluster, "n2", actor=ALICE, reason="disk")
    with pytest.raises(InputError) as refused:
        matrix_of(Decision.objects.get())
    assert refused.value.code == "DecisionExpired"


def test_decisions_since_the_last_inventory_change_replay() -> None:
    walk = Walk(11)
    for _ in range(20):
        walk.step()
    walk.import_again()
    for _ in range(10):
        walk.submit()
        walk.decide()
        walk.finish()
    repeated = 0
    for decision in Decision.objects.filter(verdict="placed"):
        try:
            rows = matrix_of(decision)
        except InputError:
            continue
        assert rows[0].name == decision.node_name
        repeated += 1
    assert repeated > 5
