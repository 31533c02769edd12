"""Joint placement: the exact solver against brute force, the others between it and the published order."""

from __future__ import annotations

import math
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsched.contracts.objects.devices import Devices, ExtendedRequest
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.units import CPU, DISK_MBPS, MEMORY, NETWORK_MBPS
from hetsched.engine.cluster.balance import cluster_balance, node_balance
from hetsched.engine.cluster.devices.state import DeviceState
from hetsched.engine.framework.nash import log_product
from hetsched.lab.joint import JointProblem, exact, greedy, improved, is_plain, problem_of
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import HOSTNAME, scheduler

RESOURCES = (CPU, MEMORY, NETWORK_MBPS, DISK_MBPS)


def four_resource_node(name: str, *used: int) -> NodeBuilder:
    """Return a node measured at these: tenths of a CPU, hundreds of MiB, Mbit/s, MB/s."""
    node = a_node(name).cpu(8).memory("8Gi").offering(NETWORK_MBPS, 80).offering(DISK_MBPS, 80)
    cpu, memory, network, disk = used
    return node.using(cpu=f"{cpu}00m", memory=f"{memory}00Mi", **{NETWORK_MBPS: str(network), DISK_MBPS: str(disk)})


def four_resource_pod(name: str, request: int, *expected: int) -> PodSpec:
    cpu, memory, network, disk = expected
    pod = a_pod(name).cpu(request).memory("1Gi")
    pod.expecting(cpu=f"{cpu}00m", memory=f"{memory}00Mi", **{NETWORK_MBPS: str(network), DISK_MBPS: str(disk)})
    return pod.build()


shares = st.integers(0, 60)
nodes_drawn = st.lists(st.tuples(shares, shares, shares, shares), min_size=1, max_size=3)
kinds_drawn = st.lists(st.tuples(st.integers(0, 5), shares, shares, shares, shares), min_size=1, max_size=3)


@st.composite
def problems(draw: st.DrawFn) -> JointProblem:
    nodes = [four_resource_node(f"n{i}", *used) for i, used in enumerate(draw(nodes_drawn))]
    kinds = draw(kinds_drawn)
    picks = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=5))
    pods = [four_resource_pod(f"p{i}", *kinds[pick]) for i, pick in enumerate(picks)]
    return problem_of(scheduler(nodes, policy="mbcgt"), pods)


def value_of_placement(problem: JointProblem, nodes: tuple[int, ...]) -> tuple[int, float] | None:
    """Compute the value of one placement in plain Python; None if a node would be overcommitted."""
    placed, total = 0, 0.0
    for node in range(len(problem.rows)):
        used = [int(amount) for amount in problem.used[:, node]]
        remaining = [int(amount) for amount in problem.free[:, node]]
        for pod, where in enumerate(nodes):
            if where != node:
                continue
            kind = problem.kinds[pod]
            placed += 1
            used = [amount + int(more) for amount, more in zip(used, problem.added[kind, :, node], strict=True)]
            remaining = [amount - int(need) for amount, need in zip(remaining, problem.needs[kind], strict=True)]
            if not problem.allowed[kind, node] or min(remaining) < 0:
                return None
            over = zip(used, problem.room[:, node], problem.added[kind, :, node], strict=True)
            if any(added > 0 and amount > room for amount, room, added in over):
                return None
        shares = [min(amount / int(room), 1.0) for amount, room in zip(used, problem.room[:, node], strict=True)]
        mean = sum(shares) / len(shares)
        total += math.log(1.0 - sum((share - mean) ** 2 for share in shares) / len(shares))
    return placed, total


def best_by_enumeration(problem: JointProblem) -> tuple[int, float]:
    every = product(range(-1, len(problem.rows)), repeat=len(problem.kinds))
    return max(worth for worth in (value_of_placement(problem, nodes) for nodes in every) if worth is not None)


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_exact_is_the_best_of_all_placements(problem: JointProblem) -> None:
    plan = exact(problem)
    assert plan.worth == pytest.approx(best_by_enumeration(problem))
    assert value_of_placement(problem, plan.rows) == pytest.approx(plan.worth)


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_improved_solver_is_between_greedy_and_exact(problem: JointProblem) -> None:
    plans = [greedy(problem), improved(problem), exact(problem)]
    for plan in plans:
        assert value_of_placement(problem, plan.rows) == pytest.approx(plan.worth)
    for lower, higher in pairwise(plans):
        assert lower.worth <= (higher.worth[0], higher.worth[1] + 1e-9)


def test_greedy_equals_the_policy_pod_by_pod() -> None:
    nodes = [
        four_resource_node("a", 10, 40, 5, 60),
        four_resource_node("b", 50, 5, 40, 0),
        four_resource_node("c", 0, 0, 0, 0),
    ]
    pods = [four_resource_pod(f"p{i}", i % 3, *draw) for i, draw in enumerate(((9, 1, 30, 2), (2, 30, 1, 1)) * 3)]
    engine = scheduler(nodes, policy="mbcgt")
    plan = greedy(problem_of(engine, pods))
    assert plan.before == pytest.approx(cluster_balance(engine.state))
    for pod in pods:
        engine.schedule(pod)
    assert plan.after == pytest.approx(cluster_balance(engine.state))
    assert plan.log_product == pytest.approx(log_product(node_balance(engine.state)))


def test_joint_placement_considers_later_pods() -> None:
    # a = (0, .75) B .140625 S .859375; b = (0, 0) S 1.
    # greedy: "even" on a (.25, .875) B .097656 S .902344, a gain; then "cpu" fits on b only (.5, 0) S .9375: .845947
    # joint: "cpu" on a (1, .75) B .015625 S .984375, "even" on b (.125, .125) S 1: .984375
    nodes = [a_node("a").cpu(4).memory("8Gi").using(cpu="0", memory="6Gi"), a_node("b").cpu(8).memory("8Gi")]
    pods = [a_pod("even").cpu(1).memory("1Gi").build(), a_pod("cpu").cpu(4).memory(0).build()]
    problem = problem_of(scheduler(nodes, policy="mbcgt"), pods)
    first, best = greedy(problem), exact(problem)
    assert (first.rows, best.rows) == ((0, 1), (1, 0))
    assert (math.exp(first.log_product), math.exp(best.log_product)) == pytest.approx((0.845947, 0.984375), abs=1e-6)
    assert improved(problem).rows == best.rows


def test_number_of_pods_precedes_the_product() -> None:
    # 4 CPUs by requests: two pods of 2 fit, though one alone leaves the node more even (1 - .0625 against 1 - .25)
    pods = [a_pod(f"p{i}").cpu(2).memory(0).build() for i in range(3)]
    plan = exact(problem_of(scheduler([a_node("n").cpu(4)], policy="mbcgt"), pods))
    assert plan.rows == (0, 0, -1)
    assert plan.log_product == pytest.approx(math.log(0.75))


def test_nodes_that_are_not_ready_are_ignored() -> None:
    nodes = [a_node("a").not_ready().using(cpu="8"), a_node("b")]
    problem = problem_of(scheduler(nodes, policy="mbcgt"), [a_pod().build()])
    assert problem.rows.tolist() == [1]
    assert exact(problem).rows == (1,)
    assert exact(problem).before == 1.0


@pytest.mark.parametrize(
    "pod",
    [
        a_pod().gpu(1),
        a_pod().numa(),
        a_pod().guaranteed(),
        a_pod().host_port(80),
        a_pod().spread(HOSTNAME, app="web"),
        a_pod().away_from(HOSTNAME, app="web"),
        a_pod().wrong(),
    ],
    ids=["cards", "zones", "pinned CPUs", "ports", "spread", "neighbours", "misconfigured"],
)
def test_pods_with_other_requests_are_not_planned(pod: PodBuilder) -> None:
    assert not is_plain(pod.build(), DeviceState())
    with pytest.raises(ValueError, match="more than amounts of resources"):
        problem_of(scheduler([a_node()], policy="mbcgt"), [pod.build()])


def test_resources_that_devices_serve_are_not_planned() -> None:
    request = ExtendedRequest(0, 0, "example.com/gpu", 0, 1)
    pod = a_pod().requesting("example.com/gpu", 1).shaped(extended=(request,)).build()
    nodes = [a_node().offering("example.com/gpu", 2)]
    assert exact(problem_of(scheduler(nodes, policy="mbcgt"), [pod])).rows == (0,)
    served = scheduler(nodes, policy="mbcgt")
    served.state.devices.add(Devices(classes={"gpu": ()}, extended={"example.com/gpu": "gpu"}))
    with pytest.raises(ValueError, match="more than amounts of resources"):
        problem_of(served, [pod])


def test_equal_problems_give_equal_plans() -> None:
    nodes = [four_resource_node(f"n{i}", 10, 20, 30, 40) for i in range(3)]
    pods = [four_resource_pod(f"p{i}", 1, 5, 2, 1, 9) for i in range(6)]
    plans = [improved(problem_of(scheduler(nodes, policy="mbcgt"), pods)) for _ in range(2)]
    assert plans[0] == plans[1]
    assert np.isfinite(plans[0].log_product)
