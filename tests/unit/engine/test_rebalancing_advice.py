"""Rebalancing advice on small clusters with a known result."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.contracts.api.advice import Advice, AdviceVerdict, Goal, Question
from hetsched.contracts.objects.cluster import DisruptionBudget
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.simulation.advice import advise
from hetsched.engine.simulation.minimal_moves import PRUNING_TRIES
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod, matching
from tests.unit.engine.fleet import policy_of

POLICY = policy_of(
    "node-ready", "node-affinity", "resource-fit", "isa-match", "gpu-fit", "gang", "admission", "nash-gain"
)
NOW = "2026-11-20T12:00:00Z"


def asked(
    goal: Goal, nodes: list[NodeBuilder], running: list[PodBuilder], *pods: PodBuilder, kept: Any = None, **more: Any
) -> Advice:
    state = ClusterState(
        [node.build() for node in nodes], [pod.build() for pod in running], budgets=more.pop("budgets", ())
    )
    question = Question(goal, tuple(pod.build() for pod in pods), **more)
    return advise(state, POLICY, question, evaluated_at=NOW, kept=kept)


def moves(found: Advice) -> list[tuple[str, str, str]]:
    return [(pod.pod, pod.from_, pod.to) for move in found.moves for pod in move.pods]


def a_service(name: str, node: str) -> PodBuilder:
    return a_pod(name).running_on(node).having(controller=f"ReplicaSet/{name}", controller_uid=name)


# -- room --------------------------------------------------------------------------------------------------------------


def test_one_move_frees_capacity_for_a_large_pod() -> None:
    # a has 5 - 4 = 1 CPU left, b 4 - 1 = 3: only after the pod of b moved to a does b have the 4 requested.
    running = [a_service("left", "a").cpu(4), a_service("right", "b").cpu(1)]
    found = asked(Goal.ROOM, [a_node("a").cpu(5), a_node("b").cpu(4)], running, a_pod("new").cpu(4))
    assert (found.verdict, moves(found)) == (AdviceVerdict.PLAN, [("default/right", "b", "a")])
    assert (found.search.fewest, found.search.at_least, found.places[0].node) == (True, 1, "b")
    assert found.moves[0].frees == {"cpu": "1", "memory": "1Gi"}


def test_search_respects_its_limit_of_tries() -> None:
    # Each of 14 nodes runs 30 pods of 0.1 CPUs on 4 and has 1 free: for 3.5, 25 have to leave, at least.
    nodes = [a_node(f"n{row:02}").cpu(4) for row in range(14)]
    running = [
        a_service(f"r{row:02}-{number}", f"n{row:02}").cpu("100m").memory("1Mi")
        for row in range(14)
        for number in range(30)
    ]
    found = asked(Goal.ROOM, nodes, running, a_pod("new").cpu("3500m"), most_moves=40, most_tries=10)
    assert (found.verdict, len(found.moves)) == (AdviceVerdict.PLAN, 25)
    # Of 12 nodes each: 25 to empty it, at most 24 more tries to find unneeded moves, 25 for the cost; 25 made.
    assert found.search.tried <= 10 + 12 * (25 + PRUNING_TRIES + 24 + 25) + 25


def test_target_is_freed_before_the_move() -> None:
    # big (3 of a's 3) fits nowhere before small left b (1 of 3), and small only fits on c (1 of 1).
    running = [a_service("big", "a").cpu(3), a_service("small", "b").cpu(1)]
    nodes = [a_node("a").cpu(3).labelled(pool="x"), a_node("b").cpu(3), a_node("c").cpu(1)]
    found = asked(Goal.ROOM, nodes, running, a_pod("new").cpu(3).on_nodes_with(pool="x"))
    assert moves(found) == [("default/small", "b", "c"), ("default/big", "a", "b")]
    assert found.search.at_least == 2


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"controller": "DaemonSet/each"}, "DaemonSet"),
        ({"preemptible": False}, "StaticPod"),
        ({"stays": "annotation"}, "SafeToEvict"),
        ({"stays": "local-volume"}, "LocalVolume"),
    ],
)
def test_unmovable_pod_is_an_obstacle(how: dict[str, Any], code: str) -> None:
    running = [a_pod("only").cpu(1).running_on("a").having(**how)]
    nodes = [a_node("a").cpu(4), a_node("b").cpu(3)]
    found = asked(Goal.ROOM, nodes, running, a_pod("new").cpu(4))
    assert (found.verdict, found.moves) == (AdviceVerdict.NONE, ())
    assert [(immovable.code, immovable.pods, immovable.example) for immovable in found.stays] == [
        (code, 1, "default/only")
    ]
    assert found.nearest is not None
    assert "does not fit now" in found.nearest.message


def test_pod_kept_by_the_caller_has_the_callers_reason() -> None:
    running = [a_service("only", "a").cpu(1)]
    nodes = [a_node("a").cpu(4), a_node("b").cpu(3)]
    found = asked(Goal.ROOM, nodes, running, a_pod("new").cpu(4), kept={"default/only": "Busy"})
    assert [immovable.code for immovable in found.stays] == ["Busy"]


def test_exhausted_budget_keeps_its_pod() -> None:
    running = [a_service("web", "a").cpu(1).labelled(app="web")]
    nodes = [a_node("a").cpu(4), a_node("b").cpu(3)]
    budget = DisruptionBudget("default", "web", matching(app="web"), 1)
    found = asked(Goal.ROOM, nodes, running, a_pod("new").cpu(4), budgets=(budget,))
    assert found.verdict is AdviceVerdict.NONE
    assert found.nearest is not None
    assert (found.nearest.node, found.nearest.pods) == ("a", ("default/web",))


def test_budget_of_one_allows_two_moves_in_sequence() -> None:
    # Two of the three web pods leave a, each while the other two run: 3 - 2 = 1 may leave, 0 are left until then.
    running = [a_service(f"web-{n}", node).cpu(2).labelled(app="web") for n, node in enumerate("aab")]
    nodes = [a_node("a").cpu(4).labelled(pool="x"), a_node("b").cpu(6)]
    budget = DisruptionBudget("default", "web", matching(app="web"), 2)
    found = asked(Goal.ROOM, nodes, running, a_pod("new").cpu(4).on_nodes_with(pool="x"), budgets=(budget,))
    assert len(moves(found)) == 2
    assert [(one.budget, one.left) for move in found.moves for one in move.budgets] == [("default/web", 0)] * 2


def test_uncontrolled_pod_moves_only_as_a_last_resort_and_is_marked() -> None:
    bare, kept = a_pod("bare").cpu(1).running_on("a"), a_service("kept", "b").cpu(1)
    nodes = [a_node("a").cpu(4), a_node("b").cpu(4), a_node("c").cpu(1)]
    found = asked(Goal.ROOM, nodes, [bare, kept], a_pod("new").cpu(4))
    assert [pod.pod for move in found.moves for pod in move.pods] == ["default/kept"]
    alone = asked(Goal.ROOM, [nodes[0], nodes[2]], [bare], a_pod("new").cpu(4))
    assert [pod.comes_back for move in alone.moves for pod in move.pods] == [False]
    assert alone.cost.not_coming_back == 1


def test_gang_moves_whole_as_one_move() -> None:
    members = [a_service(f"m-{n}", "a").cpu(1).gang("ring", 2) for n in range(2)]
    nodes = [a_node("a").cpu(4), a_node("b").cpu(3)]
    found = asked(Goal.ROOM, nodes, members, a_pod("new").cpu(4))
    assert len(found.moves) == 1
    assert moves(found) == [("default/m-0", "a", "b"), ("default/m-1", "a", "b")]


def test_exclusive_cpus_and_pod_age_are_reported_as_cost() -> None:
    running = [a_service("only", "a").cpu(1).created_at("2026-11-20T11:00:00Z")]
    nodes = [a_node("a").cpu(4), a_node("b").cpu(3)]
    found = asked(Goal.ROOM, nodes, running, a_pod("new").cpu(4))
    assert (found.cost.restarts, found.cost.lost_seconds, found.cost.exclusive) == (1, 3600, 0)


def test_free_capacity_needs_no_moves() -> None:
    found = asked(Goal.ROOM, [a_node("a")], [], a_pod("new"))
    assert (found.verdict, found.moves, found.exit_code) == (AdviceVerdict.NOTHING, (), 0)


# -- balance -----------------------------------------------------------------------------------------------------------


def test_pod_moves_to_balance_its_dominant_resource() -> None:
    # a uses 6 of 8 CPUs and 0 of 32Gi: 1 - (.75 / 2)^2 = .8594; b nothing: 1. Of three pods of 2 CPUs one on b leaves
    # .5 and .25: 1 - .0625 = .9375 and 1 - .0156 = .9844, mean .9609 instead of .9297.
    running = [a_service(f"cpu-{n}", "a").cpu(2).memory(0) for n in range(3)]
    found = asked(Goal.BALANCE, [a_node("a"), a_node("b")], running, target=0.96)
    assert (found.verdict, len(found.moves)) == (AdviceVerdict.PLAN, 1)
    assert found.balance.before == pytest.approx(0.9297, abs=1e-4)
    assert found.balance.after == pytest.approx(0.9609, abs=1e-4)


def test_unreachable_goal_is_reported_with_its_distance() -> None:
    running = [a_service(f"cpu-{n}", "a").cpu(2).memory(0) for n in range(3)]
    found = asked(Goal.BALANCE, [a_node("a"), a_node("b")], running, target=0.99)
    assert found.verdict is AdviceVerdict.PARTLY
    assert found.nearest is not None
    assert "0.9609, below the target 0.99" in found.nearest.message


# -- rare --------------------------------------------------------------------------------------------------------------


CARDS = [a_node("cards").gpus(4), a_node("plain-1"), a_node("plain-2")]


def test_plain_pod_leaves_the_gpu_node_of_a_pending_pod() -> None:
    # Of 8 CPUs on the node with GPUs the plain pod holds 6; the pending pod requests 4 and two free GPUs.
    running = [a_service("plain", "cards").cpu(6), a_service("gpu", "cards").gpu(1)]
    found = asked(Goal.RARE, CARDS, running, a_pod("waits").cpu(4).gpu(2))
    assert [(pod, source) for pod, source, _ in moves(found)] == [("default/plain", "cards")]
    assert (found.verdict, found.moves[0].makes_room_for) == (AdviceVerdict.PLAN, ("default/waits",))
    assert "frees capacity for default/waits" in found.moves[0].why
    assert [(place.pod, place.node) for place in found.places] == [("default/waits", "cards")]


def test_portable_pod_is_moved_from_the_vector_node() -> None:
    vector = a_node("vector").arch("riscv64", "rv64gcv")
    nodes = [vector, *(a_node(f"board-{n}").arch("riscv64", "rv64gc") for n in range(4))]
    running = [a_service("portable", "vector").isa("rv64gc").cpu(6)]
    found = asked(Goal.RARE, nodes, running, a_pod("wide").isa("rv64gcv").cpu(4))
    assert [(pod, source) for pod, source, _ in moves(found)] == [("default/portable", "vector")]


def test_pods_with_useless_moves_stay() -> None:
    # The pending pod needs all four GPUs and one is in use: no move of the plain pods helps.
    running = [*(a_service(f"plain-{n}", "cards").cpu("100m") for n in range(10)), a_service("gpu", "cards").gpu(1)]
    found = asked(Goal.RARE, CARDS, running, a_pod("waits").gpu(4))
    assert (found.verdict, found.moves) == (AdviceVerdict.NONE, ())
    assert found.summary.startswith("no useful plan: default/waits still does not fit: ")
    assert found.exit_code == 10


def test_goal_without_a_movable_pod_moves_nothing() -> None:
    nodes = [a_node("t4").gpus(4, "T4"), a_node("h100").gpus(1, "H100-SXM5-80GB"), a_node("plain")]
    running = [a_service("agent", "t4").cpu("100m"), a_service("gpu", "h100").gpu(1)]
    found = asked(Goal.RARE, nodes, running, a_pod("urgent").gpu(1, model="H100"))
    assert (found.verdict, found.moves) == (AdviceVerdict.NONE, ())


def test_only_moves_that_contribute_are_proposed() -> None:
    # 8 CPUs: 4 + 2 + 1 are in use. The pending pod requests 5: the pod of 4 has to move, the two others need not.
    running = [a_service(f"plain-{cpu}", "cards").cpu(cpu) for cpu in (1, 2, 4)]
    found = asked(Goal.RARE, CARDS, running, a_pod("waits").cpu(5).gpu(1))
    assert [pod for pod, _, _ in moves(found)] == ["default/plain-4"]


def test_unneeded_move_is_dropped() -> None:
    # small needs 2 CPUs, which the pod of 2 on b could leave; large needs 7 of 8 on a, where small fits then too.
    nodes = [a_node("a").cpu(12).labelled(pool="x"), a_node("b").cpu(4).labelled(pool="x"), a_node("c").cpu(16)]
    running = [a_service("on-a", "a").cpu(11), a_service("on-b", "b").cpu(4)]
    small = a_pod("small").cpu(2).on_nodes_with(pool="x").priority(9)
    large = a_pod("large").cpu(7).on_nodes_with(pool="x")
    found = asked(Goal.ROOM, nodes, running, small, large)
    assert found.verdict is AdviceVerdict.PLAN
    assert [pod for pod, _, _ in moves(found)] == ["default/on-a"]
    assert found.moves[0].makes_room_for == ("default/small", "default/large")


def test_capacity_for_a_gang_covers_all_members_or_none() -> None:
    nodes = [a_node("a").cpu(4).labelled(pool="x"), a_node("b").cpu(4).labelled(pool="x"), a_node("c").cpu(8)]
    running = [a_service("on-a", "a").cpu(4), a_service("on-b", "b").cpu(4)]
    gang = [a_pod(f"m-{n}").cpu(4).on_nodes_with(pool="x").gang("ring", 2) for n in range(2)]
    found = asked(Goal.ROOM, nodes, running, *gang)
    assert sorted(pod for pod, _, _ in moves(found)) == ["default/on-a", "default/on-b"]
    assert sorted(place.node for place in found.places) == ["a", "b"]
    stuck = asked(Goal.ROOM, [*nodes[:2], a_node("c").cpu(4)], running, *gang)
    assert (stuck.verdict, stuck.moves) == (AdviceVerdict.NONE, ())


@pytest.mark.parametrize(
    "how", [{"controller": "DaemonSet/node-agent"}, {"controller": "Node/cards"}, {"preemptible": False}]
)
def test_pods_that_a_daemonset_or_the_kubelet_runs_never_leave_a_rare_node(how: dict[str, Any]) -> None:
    running = [a_pod("agent").cpu(6).running_on("cards").having(**how)]
    found = asked(Goal.RARE, CARDS, running, a_pod("waits").cpu(4).gpu(1))
    assert (found.verdict, found.moves) == (AdviceVerdict.NONE, ())


@pytest.mark.parametrize("waiting", [[], [a_pod("fits").gpu(1)], [a_pod("plain-new")]])
def test_rare_goal_without_pending_pods_needs_no_moves(waiting: list[PodBuilder]) -> None:
    found = asked(Goal.RARE, CARDS, [a_service("plain", "cards"), a_service("gpu", "cards").gpu(1)], *waiting)
    assert (found.verdict, found.moves) == (AdviceVerdict.NOTHING, ())


# -- the token ---------------------------------------------------------------------------------------------------------


def _token(*running: PodBuilder, **pod: Any) -> str:
    nodes = [a_node("a").cpu(4), a_node("b").cpu(3), a_node("c").cpu(1)]
    only = a_service("only", "a").cpu(1).having(**pod)
    return asked(Goal.ROOM, nodes, [only, *running], a_pod("new").cpu(4)).token


def test_plan_token_depends_only_on_the_plan() -> None:
    elsewhere: PodSpec = a_service("elsewhere", "c").cpu("100m").build()
    assert elsewhere.node_name == "c"
    assert _token() == _token(a_service("elsewhere", "c").cpu("100m"))
    assert _token() != _token(uid="another")
    assert _token() != _token(a_service("full", "b").cpu(3))
