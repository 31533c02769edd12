"""Victims of preemption, and the pods that preempt none."""

from __future__ import annotations

import pytest

from hetsched.contracts.objects.allocation import ZoneGrant
from hetsched.contracts.objects.cluster import DisruptionBudget
from hetsched.contracts.objects.policy import PluginUse
from hetsched.contracts.objects.workload import GangMember
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.status import Eviction, ProtectedPods
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod, matching
from tests.unit.engine.fleet import policy_of

POLICY = policy_of("node-ready", "taints", "node-affinity", "resource-fit", "numa-fit", "gpu-fit", "preemption")


def deciding(
    nodes: list[NodeBuilder], running: list[PodBuilder], *budgets: DisruptionBudget, evicts: bool = False
) -> Scheduler:
    state = ClusterState([n.build() for n in nodes], [p.build() for p in running], budgets=budgets)
    return Scheduler(state, POLICY, evicts=evicts)


def asked(nodes: list[NodeBuilder], running: list[PodBuilder], pod: PodBuilder, *budgets: DisruptionBudget) -> Outcome:
    return deciding(nodes, running, *budgets).schedule(pod.build())


def resident(name: str, node: str = "a", priority: int = 0, cpu: str = "2") -> PodBuilder:
    return a_pod(name).cpu(cpu).memory("1Mi").priority(priority).running_on(node)


def urgent(cpu: str = "2", priority: int = 10) -> PodBuilder:
    return a_pod("urgent").cpu(cpu).memory("1Mi").priority(priority)


def victims(outcome: Outcome) -> set[str]:
    assert outcome.eviction is not None
    return {key.partition("/")[2] for key in outcome.eviction.victims}


def test_lowest_priority_pod_is_evicted() -> None:
    outcome = asked([a_node("a").cpu("4")], [resident("low", priority=1), resident("high", priority=5)], urgent())
    assert outcome.node is None
    assert outcome.eviction == Eviction("a", ("default/low",), ("",))


def test_one_large_victim_precedes_three_small_ones() -> None:
    small = [resident(f"small-{i}", cpu="1") for i in range(3)]
    assert victims(asked([a_node("a").cpu("6")], [resident("large", cpu="3"), *small], urgent("3"))) == {"large"}


def test_many_low_priority_victims_precede_a_higher_one() -> None:
    # The highest priority of the victims is compared before their number: 3 x 0 against 1 x 1.
    small = [resident(f"small-{i}", cpu="1") for i in range(3)]
    running = [resident("large", cpu="3", priority=1), *small]
    assert victims(asked([a_node("a").cpu("6")], running, urgent("3"))) == {"small-0", "small-1", "small-2"}


def test_node_with_the_fewest_victims_then_lowest_name_is_selected() -> None:
    nodes = [a_node(name).cpu("2") for name in "abc"]
    running = [resident("a-0", "a", cpu="1"), resident("a-1", "a", cpu="1"), resident("b", "b"), resident("c", "c")]
    outcome = asked(nodes, running, urgent())
    assert outcome.eviction == Eviction("b", ("default/b",), ("",))


def test_latest_started_victim_breaks_a_tie_of_nodes() -> None:
    nodes = [a_node(name).cpu("2") for name in "ab"]
    running = [
        resident("old", "a").created_at("2026-11-20T10:00:00Z"), resident("new", "b").created_at("2026-11-20T11:00:00Z")
    ]  # fmt: skip
    assert victims(asked(nodes, running, urgent())) == {"new"}


def test_budget_is_violated_only_without_other_victims() -> None:
    nodes = [a_node(name).cpu("2") for name in "ab"]
    web = resident("web", "a", priority=0).labelled(app="web")
    budget = DisruptionBudget("default", "web", matching(app="web"), 1)
    # The other pod has the higher priority, but its eviction violates no budget.
    assert victims(asked(nodes, [web, resident("plain", "b", priority=5)], urgent(), budget)) == {"plain"}
    outcome = asked(nodes[:1], [web], urgent(), budget)
    assert outcome.eviction == Eviction("a", ("default/web",), ("default/web",))


def test_budget_limits_the_number_of_victims() -> None:
    # Three run, two must stay: one may be evicted, a second would violate the budget.
    web = [resident(f"web-{i}", cpu="1").labelled(app="web") for i in range(3)]
    budget = DisruptionBudget("default", "web", matching(app="web"), 2)
    eviction = asked([a_node("a").cpu("3")], web, urgent("1"), budget).eviction
    two = asked([a_node("a").cpu("3")], web, urgent("2"), budget).eviction
    assert eviction is not None
    assert eviction.budgets == ("",)
    assert two is not None
    assert sorted(two.budgets) == ["", "default/web"]


def test_fewer_victims_do_not_violate_a_budget() -> None:
    # 9 CPUs are requested on a node of 4, and one web pod may be evicted. In the order of importance, old-web (2) and a
    # (1.5) stay, so that all 4 CPUs are used with the pod: new-web, b and low leave. The order of sizes keeps low, b
    # and a: fewer pods leave, but these are both web pods.
    web = [resident("old-web").labelled(app="web"), resident("new-web", cpu="4").labelled(app="web")]
    running = [*web, resident("a", cpu="1.5"), resident("b", cpu="500m")]
    started = [each.created_at(f"2026-01-01T00:0{i}:00Z") for i, each in enumerate(running)]
    budget = DisruptionBudget("default", "web", matching(app="web"), 1)
    low = resident("low", priority=-1, cpu="1")
    outcome = asked([a_node("a").cpu("4")], [*started, low], urgent("500m"), budget)
    assert victims(outcome) == {"new-web", "b", "low"}


def test_budget_does_not_count_terminating_pods_as_running() -> None:
    # Three run and one of them is terminating, two must stay: 2 - 2 = 0 may be evicted.
    web = [resident(f"web-{i}", cpu="1").labelled(app="web") for i in range(2)]
    ending = resident("ending", "b", cpu="1").labelled(app="web").having(terminating=True)
    budget = DisruptionBudget("default", "web", matching(app="web"), 2)
    eviction = asked([a_node("a").cpu("2"), a_node("b").cpu("1")], [*web, ending], urgent("2"), budget).eviction
    assert eviction is not None
    assert eviction.budgets == ("default/web", "default/web")


WEB = DisruptionBudget("default", "web", matching(app="web"), 1)


@pytest.mark.parametrize(
    ("pod", "resident_priority", "budget", "named"),
    [
        (urgent(), 0, WEB, True),
        (urgent(priority=0), 0, WEB, False),
        (urgent().having(preempts=False), 0, WEB, False),
        (urgent().gang("team", 1), 0, WEB, True),
        (urgent(), 10, WEB, False),
        (urgent(), 0, DisruptionBudget("default", "web", matching(app="db"), 1), False),
        (urgent(), 0, DisruptionBudget("other", "web", matching(app="web"), 1), False),
    ],
    ids=["protected", "lowest", "never", "gang", "equal", "other labels", "other namespace"],
)
def test_only_pods_that_could_preempt_wait_for_a_budget(
    pod: PodBuilder, resident_priority: int, budget: DisruptionBudget, *, named: bool
) -> None:
    web = resident("web", priority=resident_priority).labelled(app="web")
    scheduler = deciding([a_node("a").cpu("2")], [web, resident("high", priority=99, cpu="0")], budget)
    # Its eviction was rejected a short time ago.
    scheduler.state.spared = ProtectedPods(frozenset({"default/web"}))
    outcome = scheduler.schedule(pod.build())
    assert outcome.eviction is None
    waits = diagnose(scheduler, pod.build()).waits_for
    assert [wait.plugin for wait in waits] == ["resource-fit", *(["preemption"] if named else [])]
    assert not named or waits[-1].events == (Event.NAMES_CHANGED,)


def test_gang_is_evicted_whole_and_after_single_pods_of_its_priority() -> None:
    nodes = [a_node("a").cpu("4"), a_node("b").cpu("2")]
    gang = [resident("m-0", "a").gang("team", 2), resident("m-1", "b").gang("team", 2)]
    assert victims(asked(nodes, [*gang, resident("plain", "a")], urgent())) == {"plain"}
    assert victims(asked(nodes, [*gang, resident("plain", "a", priority=5)], urgent())) == {"m-0", "m-1"}


def single(name: str, node: str, priority: int = 0) -> PodBuilder:
    """Return a running member of 2 CPUs of a gang of two whose members may be preempted one by one."""
    return resident(name, node, priority).having(gang=GangMember("team", 2, disruption_mode="Single"))


def test_single_disruption_evicts_one_member() -> None:
    # Each node has 2 CPUs, used by one member: one victim is sufficient for the pod of 2 CPUs.
    nodes = [a_node("a").cpu("2"), a_node("b").cpu("2")]
    assert victims(asked(nodes, [single("m-0", "a"), single("m-1", "b")], urgent())) == {"m-0"}


def test_single_disruption_ignores_members_of_higher_priority() -> None:
    nodes = [a_node("a").cpu("2"), a_node("b").cpu("2")]
    assert victims(asked(nodes, [single("m-0", "a", priority=10), single("m-1", "b")], urgent())) == {"m-1"}


def test_gang_placed_from_the_same_queue_is_evicted_whole() -> None:
    # The gang has not started: with one member evicted, the other would wait below the minimum of two.
    gang = [single(f"m-{number}", "").having(node_name="").build() for number in range(2)]
    state = ClusterState([a_node("a").cpu("4").build()])
    scheduler = Scheduler(state, POLICY, evicts=True)
    state.gangs.register_queue([*gang, urgent().build()])
    assert [scheduler.schedule(pod).node for pod in gang] == ["a", "a"]
    outcome = scheduler.schedule(urgent().build())
    assert (outcome.node, victims(outcome)) == ("a", {"m-0", "m-1"})


def test_gang_with_a_higher_priority_member_is_not_evicted() -> None:
    gang = [resident("m-0", "a").gang("team", 2), resident("m-1", "b", priority=10).gang("team", 2)]
    assert asked([a_node("a").cpu("2"), a_node("b").cpu("2")], gang, urgent()).eviction is None


@pytest.mark.parametrize(
    "pod",
    [urgent(priority=0), urgent().having(preempts=False), urgent().gang("g", 2), urgent("9"),
     urgent().on_nodes_with(disk="ssd")],
    ids=["equal priority", "never preempts", "member of a gang", "too large for the node", "wrong node"],
)  # fmt: skip
def test_pods_without_preemption(pod: PodBuilder) -> None:
    assert asked([a_node("a").cpu("4")], [resident("x"), resident("y")], pod).eviction is None


def test_unevictable_pod_stays() -> None:
    running = [resident("static").having(preemptible=False), resident("plain", priority=5)]
    assert victims(asked([a_node("a").cpu("4")], running, urgent())) == {"plain"}


def test_feasible_node_needs_no_victim() -> None:
    outcome = asked([a_node("a").cpu("2"), a_node("b").cpu("2")], [resident("x", "a")], urgent())
    assert (outcome.node, outcome.eviction) == ("b", None)


def test_gpu_of_the_requested_model_is_freed() -> None:
    nodes = [a_node("a").gpus(1, "Tesla T4"), a_node("b").gpus(1, "A100-SXM4-40GB")]
    running = [resident("t4", "a").gpu(), resident("a100", "b", priority=3).gpu()]
    assert victims(asked(nodes, running, urgent().gpu(model="A100"))) == {"a100"}


def test_cpus_in_one_zone_are_freed() -> None:
    # Each zone has 4 CPUs and 2 are pinned in both; 4 in one zone need the eviction of the lower pod of either zone.
    node = a_node("a").cpu("8").zone("node-0", "0-3").zone("node-1", "4-7")
    running = [
        resident("zone-0", priority=5).holding("a", ZoneGrant("node-0", "0-1", 2000), policy="exclusive"),
        resident("zone-1", priority=1).holding("a", ZoneGrant("node-1", "4-5", 2000), policy="exclusive"),
    ]
    pod = urgent("4").guaranteed().numa(aware=True, cpu_policy="exclusive")
    assert victims(asked([node], running, pod)) == {"zone-1"}


def test_preemption_places_at_once_and_undo_restores_victims() -> None:
    scheduler = deciding([a_node("a").cpu("4")], [resident("low", priority=1), resident("high")], evicts=True)
    before = scheduler.state.digest(), scheduler.state.columns.load.tobytes()
    outcome = scheduler.schedule(urgent("4").build())
    assert outcome.node == "a"
    assert sorted(placed.pod.name for placed in outcome.evicted) == ["high", "low"]
    assert set(scheduler.state.placed_pods) == {"default/urgent"}
    for _ in range(2):
        scheduler.undo(outcome)
        assert (scheduler.state.digest(), scheduler.state.columns.load.tobytes()) == before


def test_pods_with_a_recently_rejected_eviction_stay() -> None:
    scheduler = deciding([a_node("a").cpu("4")], [resident("first"), resident("second")])
    assert victims(scheduler.schedule(urgent().build())) == {"second"}
    scheduler.state.spared = ProtectedPods(frozenset({"default/second"}))
    assert victims(scheduler.schedule(urgent().build())) == {"first"}
    scheduler.state.spared = ProtectedPods(frozenset({"default/first", "default/second"}))
    assert scheduler.schedule(urgent().build()).eviction is None


@pytest.mark.parametrize(("theirs", "leaves"), [("hetsched", True), ("hetsched-binpack", True), ("other", False)])
def test_pods_of_other_schedulers_are_not_evicted_in_live_clusters(theirs: str, leaves: bool) -> None:
    running = [resident("low", cpu="4").having(scheduler_name=theirs)]
    scheduler = deciding([a_node("a").cpu("4")], running)
    assert scheduler.schedule(urgent().build()).eviction is not None  # nothing else would place a pod of a file again
    scheduler.state.spared = ProtectedPods(foreign=True)
    assert (scheduler.schedule(urgent().build()).eviction is not None) is leaves
    lifted = policy_of("resource-fit", PluginUse("preemption", params={"foreign": True}))
    assert Scheduler(scheduler.state, lifted).schedule(urgent().build()).eviction is not None


def test_scheduler_without_preemption_has_no_victims() -> None:
    scheduler = deciding([a_node("a").cpu("4")], [resident("low", cpu="4")], evicts=True)
    outcome = scheduler.schedule(urgent().build(), preempts=False)
    assert (outcome.node, outcome.eviction) == (None, None)
    assert "default/low" in scheduler.state.placed_pods
