"""The gang plugin in the scheduling cycle, for registered queues and for pods that arrive one by one."""

from __future__ import annotations

from collections import Counter
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.policy import PluginUse
from hetsched.contracts.objects.workload import GangMember, PodSpec
from hetsched.engine.compiled.batch import BatchScheduler
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.diagnosis import Diagnosis
from hetsched.engine.framework.gangs import gang_key
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.policy import Policy
from hetsched.engine.simulation.what_if import what_if
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import cluster, policy_of, scheduler


def gangs(**params: object) -> Policy:
    return policy_of("gang-sort", "node-affinity", "resource-fit", "least-allocated", PluginUse("gang", params=params))


def members(name: str, count: int, least: int, cpu: str = "1") -> list[PodBuilder]:
    return [a_pod(f"{name}-{number}").cpu(cpu).gang(name, least) for number in range(count)]


def slots(count: int) -> list[NodeBuilder]:
    """Return nodes with capacity for this many 1-CPU pods in total, two per node."""
    return [a_node(f"n{number}").cpu(min(2, count - 2 * number)) for number in range((count + 1) // 2)]


def run(deciding: Scheduler, pods: list[PodBuilder]) -> dict[str, Outcome]:
    """Schedule a whole queue, registered as drivers do, and end it."""
    queue = deciding.policy.queue([pod.build() for pod in pods], deciding.state)
    outcomes = {pod.name: deciding.schedule(pod) for pod in queue}
    deciding.settle()
    return outcomes


def placed(outcomes: dict[str, Outcome]) -> list[str]:
    return sorted(name for name, outcome in outcomes.items() if outcome.node and not outcome.is_waiting)


def codes(outcomes: dict[str, Outcome]) -> set[str]:
    return {outcome.refusal[1].code for outcome in outcomes.values() if outcome.refusal}


def explained(deciding: Scheduler, outcome: Outcome) -> Diagnosis:
    return diagnose(deciding, outcome.pod)


# -- as published ------------------------------------------------------------------------------------------------------


def test_gang_runs_with_as_many_members_as_fit() -> None:
    # Capacity for 3, 6 members, 3 needed: 3 run, 3 wait.
    outcomes = run(scheduler(slots(3), policy=gangs()), members("g", 6, 3))
    assert len(placed(outcomes)) == 3


def test_incomplete_gang_reserves_nothing() -> None:
    # Capacity for 3, 6 members, 4 needed: 6 wait, nothing is reserved.
    deciding = scheduler(slots(3), policy=gangs())
    before = deciding.state.digest()
    assert placed(run(deciding, members("g", 6, 4))) == []
    assert deciding.state.digest() == before
    assert deciding.state.gangs.placed == {}


@pytest.mark.parametrize("sort", ["gang-sort", "priority-sort", "qos-sort"])
def test_two_gangs_do_not_deadlock(sort: str) -> None:
    # 6 slots, two gangs of 4, submitted alternately: one runs with 4, the other holds none; without gangs 3 + 3.
    mixed = [pod for pair in zip(members("a", 4, 4), members("b", 4, 4), strict=True) for pod in pair]
    whole = run(scheduler(slots(6), policy=policy_of(sort, "resource-fit", "gang")), mixed)
    assert placed(whole) == ["a-0", "a-1", "a-2", "a-3"]
    locked = run(scheduler(slots(6), policy=policy_of("priority-sort", "resource-fit")), mixed)
    assert Counter(name[0] for name in placed(locked)) == {"a": 3, "b": 3}


# -- gangs that are not tried
# --------------------------------------------------------------------------------------------


def test_gang_with_too_few_members_is_rejected_before_filtering() -> None:
    deciding = scheduler(slots(8), policy=gangs())
    outcomes = run(deciding, [*members("g", 3, 4), a_pod("odd").gang("g", 4).wrong(message="no")])
    assert placed(outcomes) == []
    assert codes(outcomes) == {"GangTooSmall"}
    found = explained(deciding, outcomes["g-0"])
    assert found.verdict is Verdict.NOT_NOW
    assert found.summary == (
        "default/g-0 does not fit now: gang default/g has 3 of 4 members; default/odd is misconfigured"
    )


def test_members_that_run_already_count() -> None:
    running = [a_pod(f"old-{n}").gang("g", 4).running_on("n0") for n in range(2)]
    deciding = scheduler(slots(4), running, policy=gangs())
    assert placed(run(deciding, members("g", 1, 4))) == []
    assert placed(run(deciding, members("g", 2, 4))) == ["g-0", "g-1"]


def test_gang_without_a_size_is_rejected() -> None:
    deciding = scheduler(slots(4), policy=gangs())
    outcomes = run(deciding, [a_pod("p").having(gang=GangMember("g"))])
    assert codes(outcomes) == {"GangUnknown"}
    assert explained(deciding, outcomes["p"]).verdict is Verdict.NOT_NOW


@pytest.mark.parametrize("odd", [a_pod("odd").gang("g", 2).priority(5), a_pod("odd").gang("g", 3)])
def test_members_that_disagree_are_misconfigured(odd: PodBuilder) -> None:
    deciding = scheduler(slots(8), policy=gangs())
    outcomes = run(deciding, [*members("g", 2, 2), odd])
    assert placed(outcomes) == []
    assert codes(outcomes) == {"GangMixed"}
    assert {explained(deciding, outcome).verdict for outcome in outcomes.values()} == {Verdict.MISCONFIGURED}


def test_gang_needs_its_min_resources_free() -> None:
    # 4 CPUs, 1 in use: 3 free are fewer than the 4 of minResources, though both members would fit.
    group = GangMember("g", 2, min_resources=(("cpu", 4000),))
    pods = [a_pod(f"g-{n}").having(gang=group) for n in range(2)]
    busy = scheduler(slots(4), [a_pod("other").running_on("n0")], policy=gangs())
    outcomes = run(busy, pods)
    assert codes(outcomes) == {"GangMinResources"}
    assert explained(busy, outcomes["g-0"]).reasons[0].missing == ("cpu",)
    assert len(placed(run(scheduler(slots(4), policy=gangs()), pods))) == 2


def test_gang_larger_than_the_free_capacity_is_rejected_as_a_whole() -> None:
    # n0 and n1 have 2 CPUs each, 3 in all are free. Members of 2 CPUs: 1 place now, 2 on the empty cluster.
    deciding = scheduler(slots(4), [a_pod("other").running_on("n0")], policy=gangs())
    outcomes = run(deciding, members("g", 2, 2, cpu="2"))
    assert codes(outcomes) == {"GangTooBig"}
    assert explained(deciding, outcomes["g-0"]).verdict is Verdict.NOT_NOW
    huge = run(deciding, members("h", 3, 3, cpu="2"))
    assert explained(deciding, huge["h-0"]).verdict is Verdict.NEVER_FITS


@pytest.mark.parametrize(("milli", "fitting"), [(1000, 3), (500, 6)])
def test_cards_bound_a_gang_too(milli: int, fitting: int) -> None:
    # 3 cards: 3 whole ones, or 6 halves.
    policy = policy_of("gang-sort", "resource-fit", "gpu-fit", "gang")
    for count in (fitting, fitting + 1):
        pods = [a_pod(f"g-{n}").gpu(1, milli=milli).gang("g", count) for n in range(count)]
        outcomes = run(scheduler([a_node("n0").gpus(2), a_node("n1").gpus(1)], policy=policy), pods)
        assert (len(placed(outcomes)), codes(outcomes)) == ((count, set()) if count == fitting else (0, {"GangTooBig"}))


def test_gang_is_not_now_during_gpu_maintenance() -> None:
    """GPUs in maintenance are capacity of the empty cluster for a gang too; unhealthy ones are not."""
    # 2 GPUs, one of them in maintenance: two members do not fit now, and never fit if that one is unhealthy.
    policy = policy_of("gang-sort", "resource-fit", "gpu-fit", "gang")
    pods = [a_pod(f"g-{n}").gpu(1).gang("g", 2) for n in range(2)]
    for resting, verdict in ((True, Verdict.NOT_NOW), (False, Verdict.NEVER_FITS)):
        node = a_node("n").gpus(1).gpus(1, healthy=False, maintenance=resting)
        deciding = scheduler([node], policy=policy)
        outcomes = run(deciding, pods)
        assert codes(outcomes) == {"GangTooBig"}
        assert explained(deciding, outcomes["g-0"]).verdict is verdict


# -- rejection of a gang
# ------------------------------------------------------------------------------------------------


def test_unschedulable_gang_member_is_named_with_its_reasons() -> None:
    deciding = scheduler(slots(4), policy=gangs())
    pods = members("g", 3, 3)
    pods[1] = pods[1].on_nodes_with(disk="ssd")
    outcomes = run(deciding, pods)
    assert placed(outcomes) == []
    found = explained(deciding, outcomes["g-0"])
    assert [reason.code for reason in found.reasons] == ["GangIncomplete", "NodeSelectorMismatch"]
    assert "default/g-1" in found.summary
    # No node will ever have the label, and without that member there are 2 of 3.
    assert found.verdict is Verdict.NEVER_FITS
    assert explained(deciding, outcomes["g-2"]).reasons == found.reasons


def test_gang_runs_without_an_unneeded_member() -> None:
    pods = members("g", 4, 3)
    pods[0] = pods[0].on_nodes_with(disk="ssd")
    assert placed(run(scheduler(slots(4), policy=gangs()), pods)) == ["g-1", "g-2", "g-3"]


def test_resources_of_an_abandoned_gang_are_free_for_the_next_pod() -> None:
    pods = [*members("g", 2, 2), a_pod("after").cpu(2)]
    pods[1] = pods[1].on_nodes_with(disk="ssd")
    assert placed(run(scheduler([a_node("n0").cpu(2)], policy=gangs()), pods)) == ["after"]


def test_rejected_gang_is_retried_with_the_next_queue() -> None:
    deciding = scheduler(slots(3), policy=gangs())
    assert placed(run(deciding, members("g", 4, 4))) == []
    assert len(placed(run(deciding, members("g", 3, 3)))) == 3


# -- pods without a registered queue
# -------------------------------------------------------------------------------------


def test_unregistered_members_wait_for_each_other() -> None:
    deciding = scheduler(slots(4), policy=gangs())
    first, second, third = (deciding.schedule(pod.build()) for pod in members("g", 3, 2))
    assert (first.is_waiting, second.is_waiting, third.is_waiting) == (False, False, False)
    assert deciding.waiting_pods.drain() == ([first], [])
    assert all(outcome.node for outcome in (first, second, third))


def test_permit_timeout_rejects_all_members_and_backs_off_the_gang() -> None:
    deciding = scheduler(slots(8), policy=gangs(timeout_seconds=30, backoff_seconds=10))
    deciding.expire(100)
    outcomes = [deciding.schedule(pod.build()) for pod in members("g", 2, 3)]
    deciding.expire(129)
    assert all(outcome.is_waiting for outcome in outcomes)
    deciding.expire(130)
    assert deciding.waiting_pods.drain() == ([], outcomes)
    assert [outcome.refusal and outcome.refusal[1].code for outcome in outcomes] == ["GangTimedOut"] * 2
    assert not deciding.state.placed_pods
    late = deciding.schedule(members("g", 3, 3)[2].build())
    assert late.refusal is not None
    assert late.refusal[1].code == "GangBackOff"
    deciding.expire(140)
    assert deciding.schedule(members("g", 3, 3)[2].build()).is_waiting


def test_pod_group_sets_the_timeout() -> None:
    deciding = scheduler(slots(8), policy=gangs(timeout_seconds=30))
    outcome = deciding.schedule(a_pod().having(gang=GangMember("g", 2, timeout_seconds=5)).build())
    deciding.expire(5)
    assert outcome.node is None


@pytest.mark.parametrize(("least", "left"), [(10, 9), (9, 0)])
def test_gang_waits_only_if_few_members_are_missing(least: int, left: int) -> None:
    # 9 of 10 members placed: the gap 1/10 is 10 %, they keep waiting. 8 of 9: 1/9 = 11 %, all are released.
    room = 9 if least == 10 else 8
    deciding = scheduler(slots(room), policy=gangs())
    for pod in members("g", room + 1, least):
        deciding.schedule(pod.build())
    assert len(deciding.state.placed_pods) == left


def test_rejected_member_rejects_waiting_members() -> None:
    deciding = scheduler(slots(8), policy=gangs())
    first, second = (deciding.schedule(pod.build()) for pod in members("g", 2, 3))
    deciding.undo(first)
    assert (second.node, deciding.state.placed_pods) == (None, {})
    assert deciding.waiting_pods.drain() == ([], [second])


# -- messages
# -----------------------------------------------------------------------------------------------------------


def test_what_if_reports_all_members_of_an_incomplete_gang() -> None:
    pods = [pod.build() for pod in members("g", 4, 4)]
    pods[3] = a_pod("g-3").gang("g", 4).on_nodes_with(disk="ssd").build()
    answer = what_if(cluster(slots(4)), gangs(), pods, evaluated_at="2026-11-20T10:00:00Z")
    assert answer.placements == ()
    assert {item.reasons[0].code for item in answer.unplaced} == {"GangIncomplete"}
    assert [item.pod for item in answer.unplaced] == [pod.key for pod in pods]


# -- random queues
# ------------------------------------------------------------------------------------------------------

GANGS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3)), max_size=5)


def _drawn(sizes: list[tuple[int, int, int]], plain: int, order: int) -> list[PodBuilder]:
    pods = [
        a_pod(f"g{number}-{member}").cpu(cpu if member % 2 else 1).gang(f"g{number}", least)
        for number, (count, least, cpu) in enumerate(sizes)
        for member in range(count)
    ]
    pods += [a_pod(f"plain-{number}") for number in range(plain)]
    return sorted(pods, key=lambda pod: crc32(f"{pod.build().name}/{order}".encode()))


@given(
    sizes=GANGS,
    plain=st.integers(0, 3),
    order=st.integers(0, 5),
    room=st.integers(1, 14),
    sort=st.sampled_from(["gang-sort", "priority-sort", "qos-sort", "fair-share"]),
)
def test_no_gang_is_placed_partially(
    sizes: list[tuple[int, int, int]], plain: int, order: int, room: int, sort: str
) -> None:
    deciding = scheduler(slots(room), policy=policy_of(sort, "resource-fit", "gang"))
    pods = _drawn(sizes, plain, order)
    run(deciding, pods)
    _assert_whole_gangs(deciding, pods)
    assert not deciding.waiting_pods.pods


@given(sizes=GANGS, plain=st.integers(0, 3), order=st.integers(0, 5), room=st.integers(1, 14))
def test_no_unregistered_gang_is_placed_partially(
    sizes: list[tuple[int, int, int]], plain: int, order: int, room: int
) -> None:
    deciding = scheduler(slots(room), policy=gangs(timeout_seconds=60))
    pods = _drawn(sizes, plain, order)
    for number, pod in enumerate(pods):
        deciding.expire(float(number))
        deciding.schedule(pod.build())
    deciding.expire(len(pods) + 60.0)  # all that still wait have timed out
    _assert_whole_gangs(deciding, pods)
    assert not deciding.waiting_pods.pods


@given(sizes=GANGS, running=st.lists(st.integers(0, 3), min_size=5, max_size=5), room=st.integers(1, 10))
def test_partially_running_gang_gains_no_member_or_becomes_whole(
    sizes: list[tuple[int, int, int]], running: list[int], room: int
) -> None:
    """Some members may have ended: the remaining ones count, and stay unchanged if they are too few."""
    old = [
        a_pod(f"old{number}-{member}").best_effort().gang(f"g{number}", least).running_on("n0")
        for number, (_, least, _) in enumerate(sizes)
        for member in range(running[number])
    ]
    deciding = scheduler(slots(room), old, policy=gangs())
    run(deciding, _drawn(sizes, 0, 0))
    for number, (count, least, _) in enumerate(sizes):
        placed = deciding.state.gangs.placed_members(f"default/g{number}")
        assert placed == running[number] or least <= placed <= running[number] + count


def _assert_whole_gangs(deciding: Scheduler, pods: list[PodBuilder]) -> None:
    least = {key: pod.gang.min_available for pod in (p.build() for p in pods) if pod.gang and (key := gang_key(pod))}
    placed = Counter(gang_key(placed.pod) for placed in deciding.state.placed_pods.values())
    assert {key: len(keys) for key, keys in deciding.state.gangs.placed.items()} == {
        k: n for k, n in placed.items() if k
    }
    assert all(placed[key] >= needed for key, needed in least.items() if placed[key])


@given(sizes=GANGS, order=st.integers(0, 5), room=st.integers(1, 14))
def test_rejected_gang_does_not_fit(sizes: list[tuple[int, int, int]], order: int, room: int) -> None:
    """After a queue, no gang fits whole into the remaining capacity, for gangs of one shape on one node."""
    deciding = scheduler([a_node("n0").cpu(room)], policy=gangs())
    alike = [(count, least, 1) for count, least, _ in sizes]
    pods = _drawn(alike, 0, order)
    outcomes = run(deciding, pods)
    free = room - len(deciding.state.placed_pods)
    waiting: Counter[str | None] = Counter(gang_key(o.pod) for o in outcomes.values() if o.node is None)
    needs = {f"default/g{number}": (count, least) for number, (count, least, _) in enumerate(alike)}
    for key, (count, least) in needs.items():
        if waiting[key] == count and count >= least:
            assert free < least


def test_pods_without_a_gang_skip_its_permit() -> None:
    assert [plugin.name for plugin in gangs().permits_for(a_pod().gang("g", 2).build())] == ["gang"]
    assert gangs().permits_for(a_pod().build()) == ()


def test_members_are_tried_side_by_side() -> None:
    pods: list[PodSpec] = [
        a_pod("a1").gang("a", 2).build(),
        a_pod("plain").build(),
        a_pod("b1").gang("b", 2).build(),
        a_pod("high").priority(1).build(),
        a_pod("a2").gang("a", 2).build(),
        a_pod("b2").gang("b", 2).build(),
    ]
    queue = gangs().queue(pods, cluster([a_node()]))
    assert [pod.name for pod in queue] == ["high", "a1", "a2", "plain", "b1", "b2"]


# -- the ledger --------------------------------------------------------------------------------------------------------


def test_ledger_matches_reservations_in_any_order() -> None:
    state = cluster(slots(4), [a_pod("old").gang("g", 2).running_on("n0")])
    assert state.gangs.placed == {"default/g": {"default/old"}}
    new = state.compile(a_pod("new").gang("g", 2).build())
    state.assume(new, 1)
    assert state.gangs.placed_members("default/g") == 2
    copy = state.fork()
    state.forget("default/new")
    state.forget("default/old")
    assert state.gangs.placed == {}
    assert copy.gangs.placed == {"default/g": {"default/old", "default/new"}}


def test_copy_has_no_registered_queue() -> None:
    state = cluster(slots(4))
    pod = a_pod().gang("g", 2).build()
    state.gangs.register_queue([pod])
    assert state.gangs.group_of(pod) is not None
    assert state.fork().gangs.group_of(pod) is None


# -- through the compiled loop -----------------------------------------------------------------------------------------


@given(sizes=GANGS, plain=st.integers(0, 12), order=st.integers(0, 5), room=st.integers(1, 20))
@settings(max_examples=40)
def test_batches_leave_gangs_to_the_cycle(sizes: list[tuple[int, int, int]], plain: int, order: int, room: int) -> None:
    policy = policy_of("gang-sort", "resource-fit", "least-allocated", "gang")
    pods = [pod.build() for pod in _drawn(sizes, plain, order)]
    one_by_one, at_once = (Scheduler(cluster(slots(room)), policy) for _ in range(2))
    expected = [one_by_one.schedule(pod) for pod in policy.queue(pods, one_by_one.state)]
    found = BatchScheduler(at_once, expected=10**9, shortest=1).schedule(list(policy.queue(pods, at_once.state)))
    for deciding in (one_by_one, at_once):
        deciding.settle()
    assert [(o.pod.key, o.node, o.is_waiting) for o in found] == [(o.pod.key, o.node, o.is_waiting) for o in expected]
    assert at_once.state.digest() == one_by_one.state.digest()


@pytest.mark.parametrize("count", [1, 8, 16])
def test_min_resources_count_pods_of_nodes_without_a_limit(count: int) -> None:
    group = GangMember("g", 2, min_resources=(("pods", 2),))
    pods = [a_pod(f"g-{n}").having(gang=group) for n in range(2)]
    nodes = [a_node(f"n{number}").having(allocatable={"cpu": 2000, "memory": 2**32}) for number in range(count)]
    assert len(placed(run(scheduler(nodes, policy=gangs()), pods))) == 2


@pytest.mark.parametrize(("vendor", "verdict"), [("nvidia", Verdict.NEVER_FITS), ("amd", None), ("", None)])
def test_min_resources_count_gpus_of_the_vendor(vendor: str, verdict: Verdict | None) -> None:
    group = GangMember("g", 1, min_resources=(("amd.com/gpu", 1),))
    nodes = [a_node("n").cpu(4).gpus(1, model="", vendor=vendor), a_node("m").cpu(4).gpus(0, vendor="amd")]
    found = what_if(cluster(nodes), gangs(), [a_pod("g-0").cpu(1).having(gang=group).build()], evaluated_at="")
    assert {item.verdict for item in found.unplaced} == ({verdict} if verdict else set())


def test_min_resources_above_the_empty_cluster_never_fit() -> None:
    def verdicts(*least: tuple[str, int]) -> set[Verdict]:
        group = GangMember("g", 2, min_resources=least)
        pods = [a_pod(f"g-{n}").cpu(1).gpu(1).having(gang=group).build() for n in range(2)]
        state = cluster([a_node("n").cpu(4).gpus(2)], [a_pod("r").cpu(1).running_on("n")])
        found = what_if(state, gangs(), pods, evaluated_at="")
        return {item.verdict for item in found.unplaced}

    assert verdicts(("cpu", 4001)) == {Verdict.NEVER_FITS}
    assert verdicts(("cpu", 4000)) == {Verdict.NOT_NOW}
    assert verdicts(("nvidia.com/gpu", 3)) == {Verdict.NEVER_FITS}
    assert verdicts(("nvidia.com/gpu", 2), ("cpu", 3000)) == set()
