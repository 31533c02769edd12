"""Measured use between two samples: the sample, plus pods placed since, minus pods that ended since."""

from __future__ import annotations

import random

import msgspec
import pytest

from hetsched.contracts.objects.cluster import ClusterContent, PodUsage
from hetsched.contracts.objects.node_report import NodeReport, Usage
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.contracts.units import CPU, MEMORY, PODS
from hetsched.engine.cluster.balance import cluster_balance
from hetsched.engine.cluster.columns import USAGE_RESOURCES
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.compiled.batch import BatchScheduler
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.simulation.what_if import what_if
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import REGISTRY, cluster, policy_of, rebuilt

GIB = 2**30
EARLY, LATE = "2026-11-20T10:00:00Z", "2026-11-20T10:20:00Z"


def used(state: ClusterState, node: str = "n") -> dict[str, int]:
    row = state.row_of[node]
    return dict(zip(USAGE_RESOURCES, state.columns.field("used")[:, row].tolist(), strict=True))


def placed(state: ClusterState, pod: PodSpec, node: str = "n") -> None:
    state.assume(state.compile(pod), state.row_of[node])


def test_later_placements_add_their_expected_use() -> None:
    # 3 CPUs measured with the running pod in them; + 2 declared, + 1 requested = 6; memory + 1 GiB requested each
    state = cluster([a_node("n").using(cpu="3", memory="8Gi")], [a_pod("old").cpu(7).running_on("n")])
    assert used(state)[CPU] == 3000
    placed(state, a_pod("a").cpu(1).expecting(cpu="2").build())
    placed(state, a_pod("b").cpu(1).build())
    assert (used(state)[CPU], used(state)[MEMORY]) == (6000, 10 * GIB)


def test_later_departures_subtract_their_expected_use() -> None:
    # 5 CPUs measured, of which the running pod is expected to use 4: 1 is left; a pod that comes and goes changes
    # nothing
    state = cluster([a_node("n").using(cpu="5")], [a_pod("old").cpu(1).expecting(cpu="4").running_on("n")])
    placed(state, a_pod("a").expecting(cpu="2").build())
    state.forget("default/a")
    assert used(state)[CPU] == 5000
    state.forget("default/old")
    assert used(state)[CPU] == 1000


def test_requests_count_where_use_is_not_measured() -> None:
    state = cluster([a_node("n")])
    placed(state, a_pod("a").cpu(1).expecting(cpu="4").build())
    assert used(state)[CPU] == 1000


def test_learnt_use_counts_as_declared_use_does() -> None:
    samples = tuple(PodUsage("default", f"web-{i}", "Deployment/web", {CPU: 2500}) for i in range(6))
    node = a_node("n").using(cpu="1").build()
    state = ClusterState.of(ClusterContent(nodes=(node,), pod_usages=samples))
    placed(state, a_pod("new").cpu(1).having(controller="Deployment/web").build())
    placed(state, a_pod("bare").cpu(1).build())
    assert used(state)[CPU] == 4500
    assert used(state.fork())[CPU] == 4500
    state.forget("default/new")
    assert used(state)[CPU] == 2000


def test_compiled_loop_uses_equal_expectations() -> None:
    samples = tuple(PodUsage("default", f"web-{i}", "Deployment/web", {CPU: 100 + i}) for i in range(40))
    nodes = tuple(a_node(f"n{i}").cpu(100).pods(500).using(cpu=str(i)).build() for i in range(5))
    pods = [a_pod(f"p{i}").cpu("200m").having(controller="Deployment/web" if i % 3 else "").build() for i in range(90)]
    states = [ClusterState.of(ClusterContent(nodes=nodes, pod_usages=samples)) for _ in range(2)]
    engines = [Scheduler(state, policy_of("resource-fit", "least-allocated")) for state in states]
    one_by_one = [engines[0].schedule(pod).node for pod in pods]
    assert [
        outcome.node for outcome in BatchScheduler(engines[1], expected=10**9, shortest=1).schedule(pods)
    ] == one_by_one
    assert states[0].digest() == states[1].digest()
    assert states[0].columns.load.tolist() == states[1].columns.load.tolist()


def test_what_if_names_the_basis_of_expected_use() -> None:
    samples = tuple(PodUsage("default", f"web-{i}", "Deployment/web", {CPU: 2500}) for i in range(6))
    state = ClusterState.of(ClusterContent(nodes=(a_node("n").build(),), pod_usages=samples))
    learnt, declared = a_pod("a").having(controller="Deployment/web"), a_pod("b").expecting(memory="3Gi")
    answer = what_if(
        state, policy_of("resource-fit"), [p.build() for p in (learnt, declared, a_pod("c"))], evaluated_at=EARLY
    )
    expected_use = [placement.get("expectedUse") for placement in answer.document()["placements"]]
    assert expected_use == [
        {"basis": "learnt p95 of 6 pods of Deployment/web", "amounts": {"cpu": "2500m"}},
        {"basis": "declared", "amounts": {"memory": "3Gi"}},
        None,
    ]


# -- new and old samples ----------------------------------------------------------------------------------------------


def test_new_sample_includes_all_assumed_pods() -> None:
    state = cluster([a_node("n").using(cpu="3")])
    placed(state, a_pod("a").expecting(cpu="2").build())
    state.apply_report(a_node("n").using(LATE, cpu="4").build())
    assert used(state)[CPU] == 4000


def test_report_without_a_new_sample_keeps_later_placements() -> None:
    state = cluster([a_node("n").using(cpu="3")])
    placed(state, a_pod("a").expecting(cpu="2").build())
    state.apply_report(a_node("n").using(cpu="3").cordoned().build())
    assert used(state)[CPU] == 5000


def test_stale_sample_is_ignored() -> None:
    nodes = [a_node(name).using(at, cpu="3") for name, at in (("old", EARLY), ("new", LATE), ("undated", ""))]
    state = cluster(nodes, [a_pod("r").cpu(1).running_on("old")])
    assert state.stale() == ["old"]
    assert [used(state, name)[CPU] for name in ("old", "new", "undated")] == [1000, 3000, 3000]
    answer = what_if(state, policy_of("resource-fit"), [], evaluated_at=LATE)
    assert list(answer.document()["balance"]["staleSamples"]) == ["old"]


def test_five_minutes_are_not_too_old() -> None:
    nodes = [a_node("a").using(EARLY, cpu="3"), a_node("b").using("2026-11-20T11:05:00+01:00", cpu="3")]
    assert cluster(nodes).stale() == []
    nodes[1].using("2026-11-20T10:05:01Z", cpu="3")
    assert cluster(nodes).stale() == ["a"]


def test_new_sample_makes_older_samples_stale() -> None:
    nodes = [a_node("a").using(EARLY, cpu="3"), a_node("b").using(EARLY, cpu="3")]
    state = cluster(nodes, [a_pod("r").cpu(1).running_on("a")])
    state.apply_report(nodes[1].using(LATE, cpu="4").build())
    assert state.stale() == ["a"]
    assert (used(state, "a")[CPU], used(state, "b")[CPU]) == (1000, 4000)
    assert state.columns.load.tolist() == rebuilt(state).columns.load.tolist()
    state.apply_report(nodes[0].using(LATE, cpu="5").build())
    assert (state.stale(), used(state, "a")[CPU]) == ([], 5000)


def test_digest_distinguishes_measured_use() -> None:
    pod = a_pod("a").build()
    states = [cluster([a_node("n").using(cpu="3")]) for _ in range(2)]
    placed(states[0], pod)
    running = msgspec.structs.replace(pod, node_name="n")
    held_by_the_sample = cluster([a_node("n").using(cpu="3")], [running])
    assert states[0].digest() != held_by_the_sample.digest()
    placed(states[1], pod)
    assert states[0].digest() == states[1].digest()


# -- a burst between two samples ---------------------------------------------------------------------------------------

KINDS = {
    "Deployment/cpu": (1500, GIB // 2, 5, 5),
    "Deployment/memory": (150, 3 * GIB, 5, 5),
    "Deployment/network": (150, GIB // 2, 60, 5),
    "Deployment/disk": (150, GIB // 2, 5, 60),
}
BURST, NODES = 500, 40
SHAPE = Shape(requests=((CPU, 250), (MEMORY, GIB // 2), (PODS, 1)))


class Machines:
    """Nodes with the actual use of their pods; every sample is the actual use at its time."""

    def __init__(self, policy: str, samples: tuple[PodUsage, ...]) -> None:
        room = dict(zip(USAGE_RESOURCES, (16_000, 64 * GIB, 1000, 500), strict=True)) | {PODS: 110}
        idle = dict(zip(USAGE_RESOURCES, (400, GIB, 5, 5), strict=True))
        self.truth = {f"n{i:02d}": dict(idle) for i in range(NODES)}
        nodes = tuple(NodeReport(name, allocatable=room, usage=Usage(idle, "")) for name in self.truth)
        state = ClusterState.of(ClusterContent(nodes=nodes, pod_usages=samples))
        self.engine = Scheduler(state, compile_policy(BUILTIN[policy], REGISTRY))

    def run(self, pods: list[tuple[PodSpec, tuple[int, ...]]], *, sample_each: bool) -> float:
        """Place the pods and return the balance of their actual use at the end."""
        state = self.engine.state
        for pod, amounts in pods:
            node = self.engine.schedule(pod).node
            assert node is not None
            for name, amount in zip(USAGE_RESOURCES, amounts, strict=True):
                self.truth[node][name] += amount
            if sample_each:
                self._sample(node)
        for name in self.truth:
            self._sample(name)
        return cluster_balance(state)

    def _sample(self, node: str) -> None:
        state = self.engine.state
        report = state.reports[state.row_of[node]]
        state.apply_report(msgspec.structs.replace(report, usage=Usage(dict(self.truth[node]), "")))


def burst(seed: int, spread: float) -> tuple[list[tuple[PodSpec, tuple[int, ...]]], tuple[PodUsage, ...]]:
    """Draw pods, their actual use, and the use of 30 earlier pods of each controller.

    Uses lie between 1 - `spread` and 1 times the kind's.
    """
    draw = random.Random(seed)

    def real(kind: str) -> tuple[int, ...]:
        return tuple(int(amount * draw.uniform(1 - spread, 1)) for amount in KINDS[kind])

    earlier = tuple(
        PodUsage("default", f"{kind}-{i}", kind, dict(zip(USAGE_RESOURCES, real(kind), strict=True)))
        for kind in KINDS
        for i in range(30)
    )
    kinds = [draw.choice(sorted(KINDS)) for _ in range(BURST)]
    pods = [PodSpec("default", f"p{i}", SHAPE, controller=kind) for i, kind in enumerate(kinds)]
    return [(pod, real(kind)) for pod, kind in zip(pods, kinds, strict=True)], earlier


@pytest.mark.parametrize("policy", ["mbcgt", "dynamic"])
def test_burst_is_placed_as_with_a_sample_after_each_pod(policy: str) -> None:
    # All pods of a controller use the same, so the learnt use is the actual one.
    pods, earlier = burst(1, spread=0.0)
    between = Machines(policy, earlier).run(pods, sample_each=False)
    one_a_sample = Machines(policy, earlier).run(pods, sample_each=True)
    assert between == one_a_sample


@pytest.mark.parametrize("seed", range(2))
def test_burst_of_uneven_pods_stays_balanced(seed: int) -> None:
    # The use of one pod is unknown; that may cost a thousandth, while unknown uses of all cost several.
    pods, earlier = burst(seed, spread=0.4)
    between = Machines("mbcgt", earlier).run(pods, sample_each=False)
    one_a_sample = Machines("mbcgt", earlier).run(pods, sample_each=True)
    by_requests = Machines("mbcgt", ()).run(pods, sample_each=False)
    assert between >= one_a_sample - 0.001
    assert between > by_requests + 0.003
