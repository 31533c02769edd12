"""Preemption for the members of a gang: all of them start after the evictions, or no pod is evicted."""

from __future__ import annotations

import random

import pytest

from hetsched.contracts.objects.cluster import DisruptionBudget
from hetsched.contracts.objects.workload import GangMember, GangTopology, PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.policy import Policy
from hetsched.engine.plugins.priority.preemption import Preemption
from hetsched.engine.simulation.what_if import what_if
from hetsched.lab.replay import replay
from hetsched.lab.rerun import PodBatch, RecordedPod, RunPolicies, rerun
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod, matching
from tests.unit.engine.fleet import policy_of

FILTERS = ("node-ready", "taints", "node-affinity", "resource-fit", "gpu-fit")
POLICY = policy_of("gang-sort", *FILTERS, "least-allocated", "gang", "preemption")


def resident(name: str, node: str, cpu: str = "2", priority: int = 0) -> PodBuilder:
    return a_pod(name).cpu(cpu).memory("1Mi").priority(priority).running_on(node)


def members(count: int, least: int, cpu: str = "2", name: str = "g") -> list[PodBuilder]:
    return [a_pod(f"{name}-{n}").cpu(cpu).memory("1Mi").priority(10).gang(name, least) for n in range(count)]


def state_of(nodes: list[NodeBuilder], running: list[PodBuilder], *budgets: DisruptionBudget) -> ClusterState:
    return ClusterState([n.build() for n in nodes], [p.build() for p in running], budgets=budgets)


def run(state: ClusterState, pods: list[PodBuilder], policy: Policy = POLICY) -> dict[str, Outcome]:
    """Schedule a registered queue, and end it."""
    scheduler = Scheduler(state, policy, evicts=True)
    outcomes = {pod.name: scheduler.schedule(pod) for pod in policy.queue([pod.build() for pod in pods], state)}
    scheduler.settle()
    return outcomes


def nodes_of(outcomes: dict[str, Outcome]) -> dict[str, str | None]:
    return {name: outcome.node for name, outcome in outcomes.items()}


def evicted(outcomes: dict[str, Outcome]) -> set[str]:
    return {placed.pod.name for outcome in outcomes.values() for placed in outcome.evicted}


def running_pods(state: ClusterState) -> set[str]:
    return {placed.pod.name for placed in state.placed_pods.values()}


TWO_NODES = [a_node("a").cpu("4"), a_node("b").cpu("4")]
FULL = [resident("a-0", "a"), resident("a-1", "a"), resident("b-0", "b"), resident("b-1", "b")]


def test_gang_evicts_one_pod_for_each_member() -> None:
    # Two nodes of 4 CPUs are full of pods of 2 CPUs: three members of 2 CPUs need three victims.
    state = state_of(TWO_NODES, FULL)
    outcomes = run(state, members(3, 3))
    assert None not in nodes_of(outcomes).values()
    assert [len(outcome.evicted) for outcome in outcomes.values()] == [1, 1, 1]
    assert len(running_pods(state)) == 4


def test_gang_uses_free_capacity_first() -> None:
    # 2 CPUs are free on b, so that two members of 2 CPUs need one victim.
    state = state_of(TWO_NODES, FULL[:3])
    outcomes = run(state, members(2, 2))
    assert [outcome.node for outcome in outcomes.values() if not outcome.evicted] == ["b"]
    assert len(evicted(outcomes)) == 1


def test_gang_evicts_nothing_for_members_that_fit() -> None:
    # b has capacity for two members of 2 CPUs; the third evicts one pod of a.
    outcomes = run(state_of(TWO_NODES, FULL[:2]), members(3, 3))
    assert [name for name, outcome in outcomes.items() if outcome.evicted] == ["g-2"]


def test_no_pod_is_evicted_if_too_few_members_fit_afterwards() -> None:
    # Without the pods of priority 20 there would be capacity for four members; with them, for two of three.
    running = [*FULL[:2], resident("b-0", "b", priority=20), resident("b-1", "b", priority=20)]
    state = state_of(TWO_NODES, running)
    outcomes = run(state, members(3, 3))
    assert set(nodes_of(outcomes).values()) == {None}
    assert evicted(outcomes) == set()
    assert running_pods(state) == {"a-0", "a-1", "b-0", "b-1"}
    assert state.gangs.placed == {}


def test_members_beyond_the_minimum_preempt_if_possible() -> None:
    # Capacity for four members after the evictions: the fifth waits, and the gang of at least two starts.
    outcomes = run(state_of(TWO_NODES, FULL), members(5, 2))
    assert [name for name, node in nodes_of(outcomes).items() if node is None] == ["g-4"]
    assert len(evicted(outcomes)) == 4


def test_pods_of_lowest_priority_are_evicted() -> None:
    running = [resident("low-a", "a"), resident("high-a", "a", priority=5), resident("low-b", "b", priority=1)]
    running.append(resident("high-b", "b", priority=5))
    assert evicted(run(state_of(TWO_NODES, running), members(2, 2))) == {"low-a", "low-b"}


def test_disruption_budget_is_considered_for_all_victims_together() -> None:
    # The budget allows one eviction. The second member therefore evicts the pod of higher priority.
    web = [resident(f"web-{node}", node).labelled(app="web") for node in "ab"]
    running = [*web, resident("other-a", "a", priority=5), resident("other-b", "b", priority=5)]
    budget = DisruptionBudget("default", "web", matching(app="web"), 1)
    outcomes = run(state_of(TWO_NODES, running, budget), members(2, 2))
    assert None not in nodes_of(outcomes).values()
    assert len(evicted(outcomes) & {"web-a", "web-b"}) == 1
    assert len(evicted(outcomes) & {"other-a", "other-b"}) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda pod: pod.having(preempts=False),
        lambda pod: pod.priority(0),
        lambda pod: pod.having(gang=GangMember("g", 2, min_resources=(("cpu", 5000),))),
        lambda pod: pod.having(gang=GangMember("g", 2, topology=GangTopology((), ("rack",)))),
        lambda pod: pod.having(gang=GangMember("g", 3)),
    ],
    ids=["never preempts", "equal priority", "minResources", "required topology", "missing member"],
)
def test_gang_does_not_preempt(change: object) -> None:
    nodes = [node.labelled({"rack": "r"}) for node in (a_node("a").cpu("4"), a_node("b").cpu("4"))]
    state = state_of(nodes, FULL)
    pods = [change(pod) for pod in members(2, 2)]  # type: ignore[operator]
    outcomes = run(state, pods)
    assert set(nodes_of(outcomes).values()) == {None}
    assert running_pods(state) == {"a-0", "a-1", "b-0", "b-1"}


def test_one_member_that_never_preempts_excludes_its_gang() -> None:
    first, second = members(2, 2)
    state = state_of(TWO_NODES, FULL)
    assert set(nodes_of(run(state, [first, second.having(preempts=False)])).values()) == {None}
    assert len(running_pods(state)) == 4


def test_member_that_fits_and_never_preempts_excludes_its_gang() -> None:
    # Node a is free: the first member of 2 CPUs fits there, and the second of 4 CPUs needs the victims on b.
    first, second = members(1, 2)[0], members(2, 2, "4")[1]
    assert evicted(run(state_of(TWO_NODES, FULL[2:]), [first, second])) == {"b-0", "b-1"}
    state = state_of(TWO_NODES, FULL[2:])
    assert set(nodes_of(run(state, [first.having(preempts=False), second])).values()) == {None}
    assert running_pods(state) == {"b-0", "b-1"}


def test_gang_evicts_nothing_if_other_members_suffice() -> None:
    # g-0 of 6 CPUs needs all of a. g-1 and g-2 of 2 CPUs are the minimum and fit the 5 free CPUs of b.
    nodes = [a_node("a").cpu("6"), a_node("b").cpu("5")]
    state = state_of(nodes, [resident("a-0", "a", "6")])
    outcomes = run(state, [members(1, 2, "6")[0], *members(3, 2)[1:]])
    assert nodes_of(outcomes) == {"g-0": None, "g-1": "b", "g-2": "b"}
    assert evicted(outcomes) == set()


def test_missing_member_of_a_running_gang_preempts() -> None:
    # One of two members runs: the other completes the gang and evicts one pod.
    running = [resident("g-0", "a", priority=10).gang("g", 2), *FULL[1:]]
    state = state_of(TWO_NODES, running)
    outcomes = run(state, members(2, 2)[1:])
    assert (len(evicted(outcomes)), "g-1" in running_pods(state)) == (1, True)


def test_gang_with_other_members_unknown_does_not_preempt() -> None:
    state = state_of(TWO_NODES, FULL)
    outcome = Scheduler(state, POLICY, evicts=True).schedule(members(2, 2)[0].build())
    assert (outcome.eviction, len(running_pods(state))) == (None, 4)


def test_gang_evicts_a_gang_as_a_whole() -> None:
    # The victims form one gang of 2 x 2 CPUs on both nodes; the second member uses its capacity on the other node.
    victims = [resident(f"v-{node}", node).gang("v", 2) for node in "ab"]
    keepers = [resident(f"keep-{node}", node, priority=20) for node in "ab"]
    outcomes = run(state_of(TWO_NODES, [*victims, *keepers]), members(2, 2))
    assert set(nodes_of(outcomes).values()) == {"a", "b"}
    assert evicted(outcomes) == {"v-a", "v-b"}


def test_what_if_lists_the_victims_of_a_gang() -> None:
    pods = [pod.build() for pod in members(2, 2)]
    answer = what_if(state_of(TWO_NODES, FULL), POLICY, pods, evaluated_at="2026-11-29T00:00:00Z")
    assert len(answer.placements) == 2
    assert len(answer.evictions) == 2


QOS_POLICY = policy_of("qos-sort", *FILTERS, "least-allocated", "gang", "preemption")


def small_and_large() -> tuple[ClusterState, list[PodBuilder]]:
    """Return a cluster and a gang whose members of 2 and 4 CPUs both fit only if the first evicts two pods of gang v.

    Its cheapest victim is one pod on n2, which alone has 4 CPUs. The free CPUs of n4 cannot be used.
    """
    nodes = [a_node("n1").cpu("2"), a_node("n2").cpu("4"), a_node("n3").cpu("1"), a_node("n4").cpu("8").not_ready()]
    running = [resident("v-0", "n1").gang("v", 2), resident("v-1", "n3", "1").gang("v", 2)]
    running += [resident("n2-0", "n2"), resident("n2-1", "n2")]
    small, large = members(2, 2)
    return state_of(nodes, running), [small, large.cpu("4")]


def test_decisions_search_the_nodes_of_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    # With one node for each member, the trial selects n1 for g-0, because the estimated costs on n1 and n2 are equal.
    monkeypatch.setattr("hetsched.engine.plugins.priority.preemption._MOST_GANG_NODES", 2)
    outcomes = run(*small_and_large())
    assert nodes_of(outcomes) == {"g-0": "n1", "g-1": "n2"}


@pytest.fixture
def failing_gang(monkeypatch: pytest.MonkeyPatch) -> tuple[ClusterState, list[PodSpec]]:
    """Return a cluster and a gang whose second member fails after the evictions for the first.

    The trial does not foresee this, as if a Permit plugin rejected the second member.
    """
    monkeypatch.setattr(Preemption, "_gang_needs_evictions", lambda *args: True)
    state, pods = small_and_large()
    return state, [pod.build() for pod in pods]


def test_trial_places_members_in_queue_order() -> None:
    # g-1 must run on the full n3. Without evictions, the minimum of two fits only if g-0 of 4 CPUs precedes g-2,
    # but `qos-sort` orders g-2 first, and g-2 selects the emptier n1.
    nodes = [a_node("n1").cpu("4"), a_node("n2").cpu("4"), a_node("n3").cpu("2").labelled(only="g-1")]
    keep = resident("n2-0", "n2", priority=20)
    large, pinned, small = members(3, 2)
    pods = [large.cpu("4"), pinned.guaranteed().on_nodes_with(only="g-1"), small.guaranteed()]
    state = state_of(nodes, [keep, resident("n3-0", "n3")])
    outcomes = run(state, pods, QOS_POLICY)
    assert nodes_of(outcomes) == {"g-1": "n3", "g-2": "n1", "g-0": None}
    assert evicted(outcomes) == {"n3-0"}


def test_what_if_does_not_list_evictions_that_were_undone(failing_gang: tuple[ClusterState, list[PodSpec]]) -> None:
    state, pods = failing_gang
    answer = what_if(state, POLICY, pods, evaluated_at="2026-11-29T00:00:00Z")
    assert (answer.placements, answer.evictions) == ((), ())
    assert "eviction" not in answer.summary


def test_replay_does_not_count_evictions_that_were_undone(failing_gang: tuple[ClusterState, list[PodSpec]]) -> None:
    state, pods = failing_gang
    result, _ = replay(state, pods, POLICY, samples=len(pods))
    assert (result.pending, result.evicted) == (2, 0)


def test_rerun_does_not_count_evictions_that_were_undone(failing_gang: tuple[ClusterState, list[PodSpec]]) -> None:
    state, pods = failing_gang
    entries = tuple(RecordedPod(pod, number, "p", 1, None) for number, pod in enumerate(pods))
    policies = RunPolicies(POLICY, {("p", 1): POLICY})
    result = rerun(state, [PodBatch(entries)], policies, against={0: "n1", 1: "n2"})
    assert (set(result.nodes.values()), result.evicted) == ({None}, 0)


def test_scheduler_that_does_not_evict_reports_the_gang_as_rejected() -> None:
    state = state_of(TWO_NODES, FULL)
    scheduler = Scheduler(state, POLICY)
    outcomes = [scheduler.schedule(pod) for pod in POLICY.queue([pod.build() for pod in members(2, 2)], state)]
    scheduler.settle()
    assert [outcome.node for outcome in outcomes] == [None, None]
    assert len(running_pods(state)) == 4


@pytest.mark.parametrize("seed", range(60))
def test_gang_of_equal_members_preempts_if_and_only_if_the_minimum_fits(seed: int) -> None:
    """Members of one CPU size fit floor(free / size) times each node: free without all pods of lower priority."""
    generator = random.Random(seed)
    count, size = generator.randint(1, 3), generator.randint(1, 3)
    nodes, running, slots = [], [], 0
    for row in range(count):
        total = generator.randint(2, 8)
        nodes.append(a_node(f"n{row}").cpu(str(total)))
        kept = used = 0
        for number in range(4):
            cpu, priority = generator.randint(1, 3), generator.choice([0, 5, 20])
            if used + cpu <= total:
                used += cpu
                kept += cpu if priority >= 10 else 0
                running.append(resident(f"r{row}-{number}", f"n{row}", str(cpu), priority))
        slots += (total - kept) // size
    least = generator.randint(1, 4)
    pods = members(generator.randint(least, 5), least, str(size))
    state = state_of(nodes, running)
    before = running_pods(state)
    outcomes = run(state, pods)
    started = sum(outcome.node is not None for outcome in outcomes.values())
    if slots >= least:
        assert started == min(slots, len(pods))
    else:
        assert (started, running_pods(state)) == (0, before)
    assert running_pods(state) >= {pod.name for pod in (p.build() for p in running) if pod.priority >= 10}
