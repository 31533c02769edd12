"""Gangs from submission to reservations, and queues without starvation."""

from __future__ import annotations

import time
from collections import Counter
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.contracts.objects.workload import GangMember, GangTopology
from hetsched.inventory.models import Cluster
from hetsched.placement.actions import cancel
from hetsched.placement.models import Decision, Pod, Reservation
from hetsched.placement.queries.decision_check import rerun
from hetsched.placement.queries.decision_matrix import details_of, matrix_of
from hetsched.placement.queries.invariants import check_invariants
from hetsched.policies.actions import activate, save_draft
from hetsched.scheduling import scheduling_cycle
from tests.builders import PodBuilder, a_node, a_pod
from tests.situations import ALICE, a_cluster, submitted
from workers import schedule


@pytest.fixture
def cluster(db: None) -> Cluster:
    """Return a cluster with one node of 8 CPUs; the default policy has the gang plugin."""
    made = a_cluster(a_node("n1").cpu(8))
    activate_plugins("gang-sort", "node-affinity", "resource-fit", "least-allocated", "gang")
    return made


def activate_plugins(*plugins: str, name: str = "hetsched") -> None:
    """Activate a policy with these plugins."""
    spec = PolicySpec(name, tuple(PluginUse(plugin) for plugin in plugins))
    activate(name, save_draft(spec, actor=ALICE).version, actor=ALICE, reason="test")


def members(name: str, numbers: range, least: int) -> list[PodBuilder]:
    return [a_pod(f"{name}-{number}").gang(name, least) for number in numbers]


def states() -> dict[str, str]:
    return dict(Pod.objects.values_list("name", "state"))


def code(pod: str) -> str:
    return Decision.objects.filter(pod_name=pod).latest("id").reasons[0].code


def test_members_submitted_separately_start_together(cluster: Cluster) -> None:
    submitted(cluster, *members("g", range(2), 4))
    schedule.run(cluster.pk)
    assert (states(), code("g-0")) == ({"g-0": "not-now", "g-1": "not-now"}, "GangTooSmall")
    # The first two are not due, and only a change would queue them again: the arrival of their gang members does.
    assert not Pod.objects.filter(queued=True).exists()
    submitted(cluster, *members("g", range(2, 4), 4))
    schedule.run(cluster.pk)
    assert set(states().values()) == {"placed"}
    assert check_invariants() == []


@pytest.mark.parametrize("batch", [1, 2, 500])
def test_batch_contains_gangs_whole(cluster: Cluster, settings: Any, batch: int) -> None:
    settings.HETSCHED_BATCH = batch
    mixed = [pod for pair in zip(members("a", range(5), 5), members("b", range(5), 5), strict=True) for pod in pair]
    submitted(cluster, a_pod("first"), *mixed, a_pod("last"))
    schedule.run(cluster.pk)
    # 8 CPUs: first, the 5 of a, last; b needs 5 and gets 2 or 1.
    found = states()
    assert {name for name, state in found.items() if state == "placed"} == {
        "first", "a-0", "a-1", "a-2", "a-3", "a-4", "last",
    }  # fmt: skip
    assert {found[f"b-{number}"] for number in range(5)} == {"not-now"}
    assert Reservation.objects.filter(active=True).count() == 7
    assert check_invariants() == []


def test_batch_may_end_inside_a_complete_gang(cluster: Cluster, settings: Any) -> None:
    settings.HETSCHED_BATCH = 2
    submitted(cluster, *members("g", range(7), 3))
    schedule.run(cluster.pk)
    assert set(states().values()) == {"placed"}
    # 3 of 7 members complete the gang: batches of 3, 2 and 2.
    by_revision = Decision.objects.values_list("cluster_revision", flat=True)
    assert sorted(Counter(by_revision).values()) == [2, 2, 3]


def test_broken_gang_reserves_nothing_and_names_its_unplaceable_member(cluster: Cluster) -> None:
    pods = members("g", range(3), 3)
    pods[2] = pods[2].on_nodes_with(disk="ssd")
    submitted(cluster, *pods, a_pod("other").cpu(8))
    schedule.run(cluster.pk)
    found = states()
    assert found.pop("other") == "placed"
    assert set(found.values()) == {"never-fits"}
    decision = Decision.objects.get(pod_name="g-0")
    assert [reason.code for reason in decision.reasons] == ["GangIncomplete", "NodeSelectorMismatch"]
    assert "default/g-2" in decision.summary
    assert check_invariants() == []


def test_rejected_gang_has_its_nearest_fit(cluster: Cluster) -> None:
    submitted(cluster, *(pod.cpu(4).memory(0) for pod in members("g", range(3), 3)))
    schedule.run(cluster.pk)
    suggestions = details_of(Decision.objects.get(pod_name="g-0")).nearest_fit
    # 8 CPUs fit two members of 4, or three of 8000m / 3.
    assert [(fit.change, fit.nodes) for fit in suggestions] == [
        ("min-available 3 -> 2", ("n1",)), ("cpu 4 -> 2.666", ("n1",)),
    ]  # fmt: skip


def test_members_and_their_replacement_run_in_one_rack(db: None) -> None:
    # Racks a and c have two nodes, b has one; nodes have 2 CPUs. Two members fit b, four need a or c.
    cluster = a_cluster(*(a_node(f"n{n}").cpu(2).labelled(rack=rack) for n, rack in enumerate("abcac")))
    activate_plugins("gang-sort", "resource-fit", "least-allocated", "gang")
    topology = GangTopology((), ("rack",))

    def ring(name: str, numbers: range) -> list[PodBuilder]:
        gang = GangMember(name, 2, topology=topology)
        return [a_pod(f"{name}-{number}").having(gang=gang) for number in numbers]

    def racks(name: str) -> set[str]:
        held = Reservation.objects.filter(active=True, pod__gang=name)
        return {row.node.report.labels["rack"] for row in held.select_related("node")}

    submitted(cluster, *ring("small", range(2)))
    submitted(cluster, *ring("large", range(3)))
    schedule.run(cluster.pk)
    assert set(states().values()) == {"placed"}
    assert (racks("small"), racks("large")) == ({"b"}, {"a"})
    # b is full: a further member of the small gang waits, although a and c have free CPUs.
    submitted(cluster, *ring("small", range(2, 3)))
    submitted(cluster, *ring("large", range(3, 4)))
    schedule.run(cluster.pk)
    assert (states()["small-2"], states()["large-3"]) == ("not-now", "placed")
    assert (racks("small"), racks("large")) == ({"b"}, {"a"})
    reasons = Decision.objects.get(pod_name="small-2").reasons
    assert {reason.code for reason in reasons} == {"InsufficientResource", "GangDomain"}
    # Every decision is recomputed in the same domain.
    for decision in Decision.objects.exclude(node_name=""):
        assert rerun(decision).differences == ()
        feasible = {outcome.name for outcome in matrix_of(decision) if outcome.feasible}
        assert decision.node_name in feasible
        assert feasible <= {"n1"} or feasible <= {"n0", "n3"}
    members_left = Pod.objects.filter(gang="large", state="placed").exclude(name="large-0")
    members_left.update(gang="other")
    assert rerun(Decision.objects.get(pod_name="large-0")).differences == ()
    assert check_invariants() == []


def test_members_that_name_different_policies_are_misconfigured(cluster: Cluster) -> None:
    submitted(cluster, a_pod("a").gang("g", 2), a_pod("b").gang("g", 2).policy("first-fit"))
    schedule.run(cluster.pk)
    assert states() == {"a": "misconfigured", "b": "misconfigured"}
    assert code("a") == "GangMixed"


def test_gang_beyond_its_timeout_is_rejected_whole(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted(cluster, *members("g", range(8), 8), a_pod("other"))
    clock = count()
    # Each read of the decisions' clock advances it by a second; other modules use the real clock.
    slow = SimpleNamespace(monotonic=lambda: next(clock) * 1.0, perf_counter=time.perf_counter)
    monkeypatch.setattr(scheduling_cycle, "time", slow)
    schedule.run(cluster.pk)
    assert states() == {**{f"g-{number}": "not-now" for number in range(8)}, "other": "placed"}
    assert {code("g-0"), code("g-7")} == {"PermitWaiting", "GangTooSlow"}
    assert Reservation.objects.filter(active=True).count() == 1


def test_gang_is_tried_again_after_its_backoff(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    of_decisions = SimpleNamespace(monotonic=lambda: clock.now, perf_counter=time.perf_counter)
    monkeypatch.setattr(scheduling_cycle, "time", of_decisions)
    plugins = (PluginUse("gang-sort"), PluginUse("resource-fit"), PluginUse("gang", params={"backoff_seconds": 30}))
    spec = PolicySpec("hetsched", plugins)
    activate("hetsched", save_draft(spec, actor=ALICE).version, actor=ALICE, reason="test")
    other = submitted(cluster, a_pod("other"))
    schedule.run(cluster.pk)
    submitted(cluster, a_pod("g-0").cpu(4).gang("g", 2), a_pod("g-1").cpu("3500m").gang("g", 2))
    schedule.run(cluster.pk)
    assert code("g-0") == "GangIncomplete"
    cancel(other, actor=ALICE, reason="test")
    for now, wanted in ((129.0, "not-now"), (131.0, "placed")):
        clock.now = now
        Pod.objects.filter(gang="g").update(queued=True, not_before=None)
        schedule.run(cluster.pk)
        found = states()
        assert (found["g-0"], found["g-1"]) == (wanted, wanted)


@pytest.mark.parametrize("batch", [2, 500])
def test_flooding_namespace_starves_no_other(cluster: Cluster, settings: Any, batch: int) -> None:
    settings.HETSCHED_BATCH = batch
    activate_plugins("fair-share", "resource-fit", "least-allocated")
    submitted(cluster, *(a_pod(f"flood-{number}", "flood") for number in range(40)))
    submitted(cluster, *(a_pod(f"few-{number}", "few") for number in range(3)))
    schedule.run(cluster.pk)
    placed = list(Decision.objects.filter(verdict="placed").order_by("id").values_list("pod_name", flat=True))
    assert placed == ["flood-0", "few-0", "flood-1", "few-1", "flood-2", "few-2", "flood-3", "flood-4"]


def test_unschedulable_flood_does_not_starve_others(cluster: Cluster, settings: Any) -> None:
    settings.HETSCHED_BATCH = 10
    activate_plugins("fair-share", "resource-fit", "least-allocated")
    submitted(cluster, a_pod("first", "few"))
    schedule.run(cluster.pk)
    submitted(cluster, *(a_pod(f"flood-{number}", "flood").cpu(100) for number in range(40)))
    submitted(cluster, *(a_pod(f"few-{number}", "few") for number in range(5)))
    schedule.run(cluster.pk)
    # The flood uses nothing and `few` an eighth: still the order alternates after each rejection.
    by_id = list(Decision.objects.order_by("id").values_list("namespace", flat=True))
    assert by_id[:11] == ["few", *["flood", "few"] * 5]


def test_priority_order_alone_is_not_fair(cluster: Cluster) -> None:
    submitted(cluster, *(a_pod(f"flood-{number}", "flood") for number in range(40)))
    submitted(cluster, a_pod("few", "few"))
    schedule.run(cluster.pk)
    assert states()["few"] == "not-now"
