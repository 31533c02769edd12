"""Queue orders of policies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hetsched.contracts.objects.policy import PluginUse
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.shares import TeamShares
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import Policy
from tests.builders import PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import cluster, policy_of, scheduler


def fair(**params: object) -> Policy:
    return policy_of(PluginUse("fair-share", params=params), "resource-fit")


def names(pods: list[PodSpec]) -> list[str]:
    return [pod.name for pod in pods]


def tried(deciding: Scheduler, pods: list[PodBuilder]) -> list[str]:
    """Schedule a queue; return `namespace/name` of the placed pods in order."""
    queue = deciding.policy.queue([pod.build() for pod in pods], deciding.state)
    return [pod.key for pod in queue if deciding.schedule(pod).node]


def test_service_class_precedes_submission_order() -> None:
    pods = [
        a_pod("best-effort").best_effort(),
        a_pod("burstable-1"),
        a_pod("guaranteed-1").guaranteed(),
        a_pod("high").best_effort().priority(1),
        a_pod("guaranteed-2").guaranteed(),
        a_pod("burstable-2"),
    ]
    order = policy_of("qos-sort").queue([pod.build() for pod in pods], cluster([a_node()]))
    assert names(list(order)) == [
        "high", "guaranteed-1", "guaranteed-2", "burstable-1", "burstable-2", "best-effort",
    ]  # fmt: skip


@given(st.lists(st.integers(-2, 2), max_size=12))
def test_gang_sort_without_gangs_equals_priority_sort(priorities: list[int]) -> None:
    pods = [a_pod(f"p{number}").priority(priority).build() for number, priority in enumerate(priorities)]
    state = cluster([a_node()])
    assert list(policy_of("gang-sort").queue(pods, state)) == list(policy_of("priority-sort").queue(pods, state))


def test_gang_has_the_position_of_its_first_member() -> None:
    pods = [
        a_pod("x").gang("late", 2),
        a_pod("early-1").gang("early", 2),
        a_pod("plain"),
        a_pod("early-2").gang("early", 2),
        a_pod("y").gang("late", 2),
    ]
    order = policy_of("gang-sort").queue([pod.build() for pod in pods], cluster([a_node()]))
    assert names(list(order)) == ["x", "y", "early-1", "early-2", "plain"]


def test_gangs_of_one_name_in_two_namespaces_are_two() -> None:
    pods = [a_pod("1", "a").gang("g", 2), a_pod("2", "b").gang("g", 2), a_pod("3", "a").gang("g", 2)]
    order = policy_of("gang-sort").queue([pod.build() for pod in pods], cluster([a_node()]))
    assert names(list(order)) == ["1", "3", "2"]


# -- by dominant share -------------------------------------------------------------------------------------------------


def test_published_example_of_dominant_resource_fairness() -> None:
    # 9 CPUs, 18 GiB. A asks <1 CPU, 4 GiB>, B <3 CPUs, 1 GiB>. A: 3 pods, 12/18 GiB = 2/3. B: 2 pods, 6/9 CPUs = 2/3.
    node = a_node().cpu(9).memory("18Gi")
    pods = [a_pod(f"{n}", "a").cpu(1).memory("4Gi") for n in range(5)]
    pods += [a_pod(f"{n}", "b").cpu(3).memory("1Gi") for n in range(5)]
    placed = tried(scheduler([node], policy=fair()), pods)
    # Shares of A: 0, 2/9, 4/9, 2/3; of B: 0, 1/3, 2/3. The publication's run: B or A first, then by the lowest share.
    assert placed == ["a/0", "b/0", "a/1", "b/1", "a/2"]


def test_flooding_namespace_starves_no_other() -> None:
    flood = [a_pod(f"{n}", "flood") for n in range(100)]
    few = [a_pod(f"{n}", "few") for n in range(3)]
    by_priority = tried(scheduler([a_node().cpu(8)], policy="default-kube"), flood + few)
    assert by_priority == [f"flood/{n}" for n in range(8)]
    placed = tried(scheduler([a_node().cpu(8)], policy=fair()), flood + few)
    assert placed[:6] == ["flood/0", "few/0", "flood/1", "few/1", "flood/2", "few/2"]
    assert len(placed) == 8


def test_current_use_of_a_namespace_counts() -> None:
    running = [a_pod(f"old-{n}", "rich").running_on("node") for n in range(3)]
    pods = [a_pod(f"{n}", namespace) for n in range(4) for namespace in ("rich", "poor")]
    placed = tried(scheduler([a_node().cpu(8)], running, policy=fair()), pods)
    # Shares in eighths, rich : poor = 3 : 0. poor takes three, at 3 : 3 rich was first, then poor has less.
    assert placed == ["poor/0", "poor/1", "poor/2", "rich/0", "poor/3"]


def test_weights_set_the_share_of_a_namespace() -> None:
    pods = [a_pod(f"{n}", namespace) for n in range(6) for namespace in ("one", "two")]
    placed = tried(scheduler([a_node().cpu(6)], policy=fair(namespace_weights={"two": 2.0})), pods)
    assert sum(key.startswith("two/") for key in placed) == 4  # 4 CPUs / weight 2 = 2 CPUs / weight 1


def test_teams_share_before_their_namespaces_do() -> None:
    # Team x has two namespaces, team y one: 8 CPUs are 4 + 4, and the 4 of x are 2 + 2.
    namespaces = {"x1": {"team": "x"}, "x2": {"team": "x"}, "y1": {"team": "y"}}
    pods = [a_pod(f"{n}", namespace) for n in range(8) for namespace in namespaces]
    deciding = scheduler([a_node().cpu(8)], policy=fair(team_label="team"), namespaces=namespaces)
    placed = tried(deciding, pods)
    assert {name: sum(key.startswith(name) for key in placed) for name in namespaces} == {"x1": 2, "x2": 2, "y1": 4}


def test_team_of_the_pod_precedes_its_namespaces() -> None:
    pods = [a_pod(f"a{n}").labelled(team="a") for n in range(4)] + [a_pod(f"b{n}").labelled(team="b") for n in range(2)]
    policy = fair(team_label="team", team_weights={"b": 3.0})
    placed = tried(scheduler([a_node().cpu(4)], policy=policy), pods)
    assert sorted(placed) == ["default/a0", "default/a1", "default/b0", "default/b1"]


def test_pod_that_does_not_fit_costs_its_namespace_nothing() -> None:
    pods = [a_pod("huge", "a").cpu(100), *(a_pod(f"{n}", namespace) for n in range(2) for namespace in ("b", "a"))]
    placed = tried(scheduler([a_node().cpu(4)], policy=fair()), pods)
    assert placed == ["b/0", "a/0", "b/1", "a/1"]


def test_unschedulable_floods_use_only_their_share() -> None:
    # Two namespaces use nothing and have 50 pods each that fit nowhere; a third uses half of the cluster.
    floods = [a_pod(f"{n}", name).cpu(100) for name in ("flood-1", "flood-2") for n in range(50)]
    few = [a_pod(f"{n}", "few") for n in range(3)]
    deciding = scheduler([a_node().cpu(8)], [a_pod("old", "few").cpu(4).running_on("node")], policy=fair())
    order = []
    for pod in deciding.policy.queue([pod.build() for pod in (*floods, *few)], deciding.state):
        order.append(pod.key)
        deciding.schedule(pod)
    # Each round both are rejected once, then one of the third's is placed.
    assert [order.index(f"few/{n}") for n in range(3)] == [2, 5, 8]
    assert len(order) == 103


def test_scarce_gpus_are_the_dominant_resource() -> None:
    # 8 GPUs and 64 CPUs: one GPU is 1/8, one CPU 1/64. Half a GPU is 1/16.
    node = a_node().cpu(64).memory("64Gi").gpus(8)
    pods = [a_pod(f"{n}", "cards").gpu(1) for n in range(3)]
    pods += [a_pod(f"{n}", "halves").gpu(1, milli=500) for n in range(3)]
    policy = policy_of("fair-share", "resource-fit", "gpu-fit")
    order = [pod.key for pod in policy.forecast([pod.build() for pod in pods], cluster([node]))]
    assert order == ["cards/0", "halves/0", "halves/1", "cards/1", "halves/2", "cards/2"]


def test_shares_are_independent_of_the_order_of_pods() -> None:
    # 1 + 2 + 3 of 10 CPUs is 0.6; as fractions 0.1 + 0.2 + 0.3 would be a little more than 0.3 + 0.2 + 0.1.
    def share(*cpus: int) -> float:
        state = cluster([a_node().cpu(10)])
        for cpu in cpus:
            state.assume(state.compile(a_pod(f"p{cpu}", "a").cpu(cpu).build()), 0)
        return TeamShares(state, lambda pod: "", {}, {}).of_namespace("", "a")

    assert share(1, 2, 3) == share(3, 2, 1) == 0.6


def test_priority_precedes_shares() -> None:
    pods = [a_pod("0", "a"), a_pod("1", "a").priority(1), a_pod("2", "a").priority(1), a_pod("3", "b")]
    assert tried(scheduler([a_node()], policy=fair()), pods) == ["a/1", "a/2", "b/3", "a/0"]


def test_gang_is_one_step_of_progressive_filling() -> None:
    pods = [a_pod(f"{n}", "a").gang("g", 3) for n in range(3)] + [a_pod(f"{n}", "b") for n in range(4)]
    assert tried(scheduler([a_node()], policy=fair()), pods) == ["a/0", "a/1", "a/2", "b/0", "b/1", "b/2", "b/3"]


def test_forecast_assumes_every_pod_is_placed() -> None:
    pods = [a_pod(f"{n}", namespace).build() for namespace in ("a", "b") for n in range(2)]
    state = cluster([a_node()])
    assert [pod.key for pod in fair().forecast(pods, state)] == ["a/0", "b/0", "a/1", "b/1"]
    assert not state.placed_pods


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.integers(0, 3)), max_size=12))
def test_every_order_tries_each_pod_once(drawn: list[tuple[str, int, int]]) -> None:
    pods = []
    for number, (namespace, priority, gang) in enumerate(drawn):
        pod = a_pod(f"p{number}", namespace).priority(priority)
        pods.append((pod.gang(f"p{gang}", 1) if gang else pod).build())
    for sort in ("priority-sort", "qos-sort", "gang-sort", "fair-share"):
        policy = policy_of(sort, "resource-fit", "gang")
        order = list(policy.queue(pods, cluster([a_node()])))
        assert sorted(names(order)) == sorted(names(pods))
        priorities = [pod.priority for pod in order if pod.gang is None]
        assert priorities == sorted(priorities, reverse=True)


def test_sorters_declare_the_order_of_priority() -> None:
    by_priority = {
        sort: policy_of(sort, "resource-fit").sorts_by_priority
        for sort in ("priority-sort", "gang-sort", "qos-sort", "fair-share")
    }
    assert by_priority == {"priority-sort": True, "gang-sort": True, "qos-sort": False, "fair-share": False}
    assert policy_of("resource-fit").sorts_by_priority
