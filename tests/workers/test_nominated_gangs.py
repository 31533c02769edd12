"""Gangs that preempt on a live cluster: nominations, evictions and the start of all members."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from hetsched.contracts.objects.workload import GangMember
from hetsched.inventory.models import Cluster
from hetsched.placement import dispatch
from hetsched.placement.actions.evictions import claim_evictions, mark_refused, mark_requested
from hetsched.placement.models import Decision, Eviction, Nomination, Pod, Reservation
from tests.builders import PodBuilder, a_node, a_pod
from tests.situations import a_live_cluster
from tests.workers.test_nominated_pods import decide, end, observed, seen

pytestmark = pytest.mark.django_db
NODES = ("n1", "n2")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a live cluster of two nodes of 8 CPUs: n1 runs four and n2 three pods of 2 CPUs and priority 0."""
    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: None)
    made = a_live_cluster()
    names = [("n1", number) for number in range(4)] + [("n2", number) for number in range(3)]
    running = [observed(a_pod(f"low-{node}-{number}").cpu(2), node=node) for node, number in names]
    seen(made, nodes=[a_node(name).cpu(8).build() for name in NODES], pods=running)
    return made


def members(count: int, least: int, cpu: int = 2, name: str = "g") -> list[PodBuilder]:
    return [a_pod(f"{name}-{number}").cpu(cpu).having(priority=100).gang(name, least) for number in range(count)]


def arrive(cluster: Cluster, *pods: PodBuilder) -> None:
    seen(cluster, pods=[observed(pod) for pod in pods])


def retry(*names: str) -> None:
    """End the back-off of pods."""
    past = timezone.now() - timedelta(seconds=1)
    Pod.objects.filter(name__in=names).update(queued=True, not_before=past)


def nominated() -> dict[str, str]:
    return dict(Nomination.objects.filter(active=True).order_by("pod__name").values_list("pod__name", "node__name"))


def victims() -> list[str]:
    rows = Eviction.objects.filter(nomination__active=True)
    return sorted(rows.values_list("victim__name", flat=True))


def test_all_members_are_nominated_and_the_victims_form_one_group(cluster: Cluster) -> None:
    # 2 CPUs are free on n2. Three members of 2 CPUs need two victims, and the member that fits waits for them too.
    arrive(cluster, *members(3, 3))
    assert decide(cluster) == dict.fromkeys(("g-0", "g-1", "g-2"), "not-now")
    assert sorted(nominated()) == ["g-0", "g-1", "g-2"]
    assert len(victims()) == 2
    assert not Reservation.objects.filter(active=True, pod__gang="g").exists()
    (group,) = claim_evictions(cluster.pk, 10)
    assert sorted(claimed.victim.name for claimed in group) == victims()
    reasons = [decision.reasons[0] for decision in Decision.objects.filter(pod_name__startswith="g-")]
    assert {reason.code for reason in reasons} == {"PreemptionPending"}
    assert all("gang default/g can start after the deletion of" in reason.message for reason in reasons)
    assert {decision.nominated_node for decision in Decision.objects.filter(pod_name__startswith="g-")} <= set(NODES)


def test_gang_starts_after_its_last_victim_ended(cluster: Cluster) -> None:
    arrive(cluster, *members(3, 3))
    decide(cluster)
    before = nominated()
    first, last = victims()
    mark_requested([one for group in claim_evictions(cluster.pk, 10) for one in group])
    end(cluster, first)
    retry("g-0", "g-1", "g-2")
    assert decide(cluster) == dict.fromkeys(("g-0", "g-1", "g-2"), "not-now")
    assert nominated() == before
    assert victims() == sorted((first, last))
    end(cluster, last)
    assert decide(cluster) == dict.fromkeys(("g-0", "g-1", "g-2"), "placed")
    assert nominated() == {}
    assert Reservation.objects.filter(active=True, pod__gang="g").count() == 3


def test_gang_is_not_decided_again_before_its_last_victim_ended(cluster: Cluster) -> None:
    # Each decision evaluates all members, so one decision for each victim would have quadratic cost.
    arrive(cluster, *members(3, 3))
    decide(cluster)
    first, last = victims()
    end(cluster, first)
    assert decide(cluster) == {}
    end(cluster, last)
    assert decide(cluster) == dict.fromkeys(("g-0", "g-1", "g-2"), "placed")


def test_capacity_of_all_members_is_reserved_while_the_gang_waits(cluster: Cluster) -> None:
    arrive(cluster, *members(3, 3))
    decide(cluster)
    arrive(cluster, a_pod("small").cpu(2).having(priority=0))
    assert decide(cluster) == {"small": "not-now"}  # the free 2 CPUs of n2 belong to a member


def test_nothing_is_evicted_if_the_gang_cannot_start(cluster: Cluster) -> None:
    # Without all pods there is capacity for 8 members of 2 CPUs, fewer than the minimum of 9.
    arrive(cluster, *members(9, 9))
    assert set(decide(cluster).values()) <= {"not-now", "never-fits"}
    assert (nominated(), Eviction.objects.count()) == ({}, 0)


def test_nothing_is_evicted_if_pods_of_higher_priority_remain(cluster: Cluster) -> None:
    # n2 keeps a pod of 6 CPUs and priority 200: without the other pods, five members of 2 CPUs fit; six are needed.
    end(cluster, *(f"low-n2-{number}" for number in range(3)))
    seen(cluster, pods=[observed(a_pod("keep").cpu(6).having(priority=200), node="n2")])
    arrive(cluster, *members(6, 6))
    assert set(decide(cluster).values()) == {"not-now"}
    assert (nominated(), Eviction.objects.count()) == ({}, 0)
    arrive(cluster, *members(5, 5, name="h"))
    decide(cluster)
    assert list(nominated()) == [f"h-{number}" for number in range(5)]
    assert len(victims()) == 4


def test_rejected_eviction_ends_the_nominations_of_all_members(cluster: Cluster) -> None:
    arrive(cluster, *members(3, 3))
    decide(cluster)
    (group,) = claim_evictions(cluster.pk, 10)
    mark_refused(cluster.pk, group[0], "the budget allows no eviction")
    assert nominated() == {}
    assert sorted(Eviction.objects.values_list("state", flat=True)) == ["dropped", "refused"]
    assert Pod.objects.filter(gang="g", queued=True, not_before=None).exists()
    assert set(decide(cluster)) == {"g-0", "g-1", "g-2"}


def test_gang_is_placed_early_if_other_capacity_is_released(cluster: Cluster) -> None:
    # The members need two victims of n1 or n2; the end of two other pods releases enough for all three members.
    arrive(cluster, *members(3, 3))
    decide(cluster)
    others = {f"low-n1-{n}" for n in range(4)} | {f"low-n2-{n}" for n in range(3)}
    end(cluster, *sorted(others - set(victims()))[:2])
    retry("g-0", "g-1", "g-2")
    assert decide(cluster) == dict.fromkeys(("g-0", "g-1", "g-2"), "placed")
    assert nominated() == {}
    assert set(Eviction.objects.values_list("state", flat=True)) == {"dropped"}


def test_later_member_waits_for_its_nominated_gang(cluster: Cluster) -> None:
    arrive(cluster, *members(3, 3))
    decide(cluster)
    before = nominated()
    end(cluster, "low-n2-0" if "low-n2-0" not in victims() else "low-n2-1")
    arrive(cluster, a_pod("g-3").cpu(1).having(priority=100).gang("g", 3))
    retry("g-0", "g-1", "g-2")
    assert decide(cluster)["g-3"] == "not-now"
    assert nominated() == before


def test_members_beyond_the_minimum_are_nominated_one_by_one(cluster: Cluster) -> None:
    # One member runs on n2 and is the minimum. Both nodes are full, so each further member waits for its own victim.
    seen(cluster, pods=[observed(a_pod("g-0").cpu(2).having(priority=100).gang("g", 1), node="n2")])
    arrive(cluster, members(2, 1)[1])
    assert decide(cluster) == {"g-1": "not-now"}
    (first,) = victims()
    arrive(cluster, members(3, 1)[2])
    decide(cluster)
    assert sorted(nominated()) == ["g-1", "g-2"]
    end(cluster, first)
    assert decide(cluster) == {"g-1": "placed", "g-2": "not-now"}


def test_member_beyond_the_minimum_keeps_its_nomination(cluster: Cluster) -> None:
    # Two of three members fit after the deletion of the first victim. The victim of the third is terminating.
    arrive(cluster, *members(3, 2))
    decide(cluster)
    of = dict(Eviction.objects.values_list("nomination__pod__name", "victim__name"))
    third = Nomination.objects.get(pod__name="g-2")
    mark_requested([one for group in claim_evictions(cluster.pk, 10) for one in group])
    end(cluster, of["g-1"])
    retry("g-0", "g-1", "g-2")
    assert decide(cluster) == {"g-0": "placed", "g-1": "placed", "g-2": "not-now"}
    assert list(Nomination.objects.filter(active=True)) == [third]
    assert victims() == [of["g-2"]]
    end(cluster, of["g-2"])
    assert decide(cluster) == {"g-2": "placed"}


def test_gang_waits_next_to_other_nominated_pods(cluster: Cluster) -> None:
    arrive(cluster, *members(3, 3))
    decide(cluster)
    before = nominated()
    arrive(cluster, a_pod("single").cpu(2).having(priority=50))
    decide(cluster)
    retry("g-0", "g-1", "g-2")
    decide(cluster)
    assert nominated().keys() == before.keys() | {"single"}
    assert Nomination.objects.filter(pod__gang="g").count() == 3


def test_last_missing_member_of_a_gang_preempts(cluster: Cluster) -> None:
    # One of two members runs on n2, where it was placed before its gang lost the other one.
    seen(cluster, pods=[observed(a_pod("g-0").cpu(2).having(priority=100).gang("g", 2), node="n2")])
    arrive(cluster, members(2, 2)[1])
    assert decide(cluster) == {"g-1": "not-now"}
    assert list(nominated()) == ["g-1"]
    assert len(victims()) == 1


def test_group_with_a_minimum_of_one_preempts(cluster: Cluster) -> None:
    gang = GangMember("one", 1, disruption_mode="Single")
    arrive(cluster, a_pod("one-0").cpu(8).having(priority=100, gang=gang))
    assert decide(cluster) == {"one-0": "not-now"}
    assert list(nominated()) == ["one-0"]
    end(cluster, *victims())
    assert decide(cluster) == {"one-0": "placed"}


def test_pod_of_higher_priority_ends_the_nominations_of_the_whole_gang(cluster: Cluster) -> None:
    gang = GangMember("g", 2, disruption_mode="Single")
    arrive(cluster, *(a_pod(f"g-{n}").cpu(4).having(priority=100, gang=gang) for n in range(2)))
    decide(cluster)
    assert len(nominated()) == 2
    arrive(cluster, a_pod("urgent").cpu(8).having(priority=1000))
    decide(cluster)
    assert list(nominated()) == ["urgent"]
    assert set(decide(cluster)) == {"g-0", "g-1"}


def test_deleted_member_ends_the_nominations_of_its_gang(cluster: Cluster) -> None:
    arrive(cluster, *members(3, 3))
    decide(cluster)
    end(cluster, "g-1")
    assert nominated() == {}
    assert set(Eviction.objects.values_list("state", flat=True)) == {"dropped"}
    retry("g-0", "g-2")
    assert decide(cluster) == {"g-0": "not-now", "g-2": "not-now"}
    assert (nominated(), claim_evictions(cluster.pk, 10)) == ({}, [])


def test_gang_supersedes_a_nominated_pod_of_lower_priority(cluster: Cluster) -> None:
    arrive(cluster, a_pod("mid").cpu(8).having(priority=50))
    decide(cluster)
    assert list(nominated()) == ["mid"]
    arrive(cluster, *members(3, 3, cpu=4))
    decide(cluster)
    assert sorted(nominated()) == ["g-0", "g-1", "g-2"]
    assert "mid" not in victims()


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a live cluster: a pod of 8 CPUs and priority 0 fills n1, and 2 CPUs of n2 are free."""
    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: None)
    made = a_live_cluster()
    keep = a_pod("keep").cpu(6).having(priority=200)
    running = [observed(a_pod("low").cpu(8), node="n1"), observed(keep, node="n2")]
    seen(made, nodes=[a_node(name).cpu(8).build() for name in NODES], pods=running)
    return made


def test_member_beyond_the_minimum_waits_for_victims(busy: Cluster) -> None:
    # g-0 is the minimum and fits n2. g-1 preempts the pod of 8 CPUs; g-2 fits next to g-1 only after its deletion.
    arrive(busy, *members(3, 1))
    assert decide(busy) == {"g-0": "placed", "g-1": "not-now", "g-2": "not-now"}
    assert nominated() == {"g-1": "n1", "g-2": "n1"}


def test_gang_starts_without_evictions_if_its_minimum_fits(busy: Cluster) -> None:
    # The first member needs the victim; the second is the minimum and fits n2, so it does not wait.
    arrive(busy, a_pod("g-0").cpu(6).having(priority=100).gang("g", 1), *members(2, 1)[1:])
    assert decide(busy) == {"g-0": "not-now", "g-1": "placed"}
    assert nominated() == {}
    retry("g-0")
    assert decide(busy) == {"g-0": "not-now"}
    assert (nominated(), victims()) == ({"g-0": "n1"}, ["low"])


def test_rejected_eviction_for_a_later_member_keeps_earlier_nominations(cluster: Cluster) -> None:
    # g-0 runs and is the minimum. The victim of g-1 is terminating when the eviction for g-2 is rejected.
    seen(cluster, pods=[observed(a_pod("g-0").cpu(2).having(priority=100).gang("g", 1), node="n2")])
    arrive(cluster, members(2, 1)[1])
    decide(cluster)
    (group,) = claim_evictions(cluster.pk, 10)
    mark_requested(group)
    arrive(cluster, members(3, 1)[2])
    decide(cluster)
    assert sorted(nominated()) == ["g-1", "g-2"]
    (group,) = claim_evictions(cluster.pk, 10)
    mark_refused(cluster.pk, group[0], "the budget allows no eviction")
    assert list(nominated()) == ["g-1"]
