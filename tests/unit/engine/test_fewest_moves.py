"""The `room` search is compared with every sequence of moves on random small clusters."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from hetsched.contracts.api.advice import AdviceVerdict, Goal, Question
from hetsched.contracts.objects.cluster import DisruptionBudget
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.simulation.advice import advise
from hetsched.engine.simulation.movable_pods import units_of
from hetsched.engine.simulation.moves import Board
from tests.builders import a_node, a_pod, matching
from tests.unit.engine.fleet import policy_of

POLICY = policy_of(
    "node-ready", "resource-fit", "gpu-fit", "numa-fit", "host-ports", "pod-affinity", "admission", "least-allocated"
)
NOW = "2026-11-20T12:00:00Z"
MOST = 3


def a_cluster(generator: random.Random) -> ClusterState:
    nodes = []
    for number in range(3):
        node = a_node(f"n{number}").cpu(generator.randint(4, 6)).memory("16Gi")
        if generator.random() < 0.3:
            node.gpus(1)
        if generator.random() < 0.15:
            node.cpu("8").zone("node-0", "0-3", memory="8Gi").zone("node-1", "4-7", memory="8Gi")
        nodes.append(node.build())
    budgets = [DisruptionBudget("default", "web", matching(app="web"), generator.randint(0, 3))]
    state = ClusterState(nodes, (), budgets=budgets if generator.random() < 0.5 else ())
    placing = Scheduler(state, POLICY)
    for number in range(generator.randint(4, 6)):
        pod = a_pod(f"r{number}").cpu(generator.randint(1, 2)).labelled(app=generator.choice(["web", "db"]))
        pod.having(controller=generator.choice(["", f"ReplicaSet/r{number}", f"Job/r{number}"]))
        if generator.random() < 0.1:
            pod.having(controller="DaemonSet/each")
        if generator.random() < 0.2:
            pod.gpu(1, milli=generator.choice([500, 1000]))
        if generator.random() < 0.1:
            pod.guaranteed().numa(True, "exclusive")
        if generator.random() < 0.1:
            pod.host_port(80)
        if generator.random() < 0.15:
            pod.gang("team", 2)
        if generator.random() < 0.1:
            pod.having(stays="annotation")
        placing.schedule(pod.build())
    placing.settle()
    return state


def a_new_pod(generator: random.Random) -> PodSpec:
    pod = a_pod("new").cpu(generator.choice([3, 4, 4, 5])).labelled(app="new")
    if generator.random() < 0.15:
        pod.gpu(1)
    if generator.random() < 0.1:
        pod.host_port(80)
    if generator.random() < 0.1:
        pod.away_from("kubernetes.io/hostname", app="db")
    return pod.build()


def fewest(state: ClusterState, pod: PodSpec) -> int | None:
    """Return the length of the shortest sequence of moves after which the pod fits, by brute force."""
    units = list(dict.fromkeys(units_of(state, {}).all))
    for length in range(min(MOST, len(units)) + 1):
        for order in permutations(units, length):
            board = Board(state.fork(), POLICY, evaluated_at=NOW, returns=False)
            made = all(board.move(unit) is not None for unit in order)
            if made and board.scheduler.schedule(pod, preempts=False).node is not None:
                return length
    return None


@pytest.mark.parametrize("seed", range(80))
def test_move_sequence_is_minimal(seed: int) -> None:
    generator = random.Random(seed)
    state, pod = a_cluster(generator), a_new_pod(generator)
    before = state.digest()
    found = advise(state, POLICY, Question(Goal.ROOM, (pod,), most_moves=MOST, most_tries=50_000), evaluated_at=NOW)
    expected = fewest(state, pod)
    assert state.digest() == before
    if expected is None:
        assert (found.verdict, found.moves) == (AdviceVerdict.NONE, ())
        assert found.nearest is not None
        assert found.search.at_least in (0, MOST + 1)
    else:
        assert len(found.moves) == expected
        assert found.search.fewest
        assert found.places[0].pod == pod.key


@pytest.mark.parametrize("seed", range(60))
def test_found_moves_are_executable_in_order(seed: int) -> None:
    generator = random.Random(seed)
    state, pod = a_cluster(generator), a_new_pod(generator)
    found = advise(state, POLICY, Question(Goal.ROOM, (pod,), most_moves=4, most_tries=3), evaluated_at=NOW)
    board = Board(state.fork(), POLICY, evaluated_at=NOW, returns=False)
    for move in found.moves:
        moved = board.move(tuple(board.state.placed_pods[moved_pod.pod] for moved_pod in move.pods))
        assert moved is not None
        assert [outcome.node for outcome in moved.outcomes] == [moved_pod.to for moved_pod in move.pods]
        assert all(moved_pod.to != moved_pod.from_ for moved_pod in move.pods)
        assert all(budget.left >= 0 for budget in move.budgets)
    if found.verdict is AdviceVerdict.PLAN:
        assert board.scheduler.schedule(pod, preempts=False).node == found.places[0].node
