"""The default policy keeps whole GPU nodes and rare models free, and spreads pods without GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
import pytest

from hetsched.contracts.objects.policy import Ties
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import REGISTRY, built, cluster

ties = pytest.mark.parametrize("by", ["name", "random"])


def place(state: ClusterState, pods: Iterable[PodSpec], by: str, policy: str = "hetsched") -> dict[str, str]:
    """Place pods one after the other and return the node of each placed pod."""
    spec = BUILTIN[policy]
    compiled = compile_policy(msgspec.structs.replace(spec, ties=Ties(by=by, seed=3)), REGISTRY)
    scheduler = Scheduler(state, compiled)
    outcomes = [scheduler.schedule(pod, preempts=False) for pod in pods]
    return {outcome.pod.name: outcome.node for outcome in outcomes if outcome.node is not None}


def copies(often: int, name: str, pod: PodBuilder) -> list[PodSpec]:
    spec = built(pod)
    return [msgspec.structs.replace(spec, name=f"{name}-{n}") for n in range(often)]


def gpu_nodes(count: int) -> list[NodeBuilder]:
    return [a_node(f"g{n:02}").cpu(96).memory("384Gi").gpus(8, "G2", None) for n in range(count)]


@ties
def test_pods_for_whole_nodes_fit_at_80_percent_of_the_gpus(by: str) -> None:
    # 10 nodes of 8 GPUs: 32 GPUs to single pods, then 4 pods of 8 GPUs, 64 of 80.
    pods = [*copies(32, "one", a_pod().cpu(8).memory("16Gi").gpu(1)), *copies(4, "whole", a_pod().cpu(88).gpu(8))]
    assert len(place(cluster(gpu_nodes(10)), pods, by)) == 36


@ties
def test_cpu_pods_leave_whole_gpu_nodes_to_pods_that_need_every_core(by: str) -> None:
    # CPU for all CPU pods is on the 4 nodes with 2 GPUs and 104 cores.
    few = [a_node(f"t{n}").cpu(104).memory("512Gi").gpus(2, "T4", None) for n in range(4)]
    pods = [*copies(24, "cpu", a_pod().cpu(12).memory("16Gi")), *copies(4, "whole", a_pod().cpu(96).gpu(8))]
    placed = place(cluster([*gpu_nodes(4), *few]), pods, by)
    assert len(placed) == 28
    assert Counter(node[0] for name, node in placed.items() if name.startswith("cpu")) == {"t": 24}


@ties
def test_rare_models_stay_free_for_pods_that_name_them(by: str) -> None:
    # A quarter of the GPUs are P4; any GPU serves the first 20 pods, the last 8 accept only a P4.
    rare = [a_node(f"a{n}").cpu(96).memory("384Gi").gpus(4, "P4", None) for n in range(2)]
    pods = [*copies(20, "any", a_pod().cpu(8).gpu(1)), *copies(8, "p4", a_pod().cpu(8).gpu(1, model="P4", exact=True))]
    assert len(place(cluster([*gpu_nodes(3), *rare]), pods, by)) == 28


@ties
def test_last_whole_nodes_of_a_model_stay_free(by: str) -> None:
    # 96 single pods could fill all 12 nodes of 8 GPUs; the last one costs more than the 8 nodes of 2.
    few = [a_node(f"t{n}").cpu(104).memory("512Gi").gpus(2, "T4", None) for n in range(8)]
    pods = [*copies(96, "one", a_pod().cpu(8).memory("16Gi").gpu(1)), *copies(1, "whole", a_pod().cpu(88).gpu(8))]
    placed = place(cluster([*gpu_nodes(12), *few]), pods, by)
    assert len(placed) == 97


@ties
def test_cpu_pods_spread_over_nodes_without_gpus(by: str) -> None:
    fleet = [*gpu_nodes(2), *(a_node(f"c{n}").cpu(32).memory("128Gi") for n in range(6))]
    placed = place(cluster(fleet), copies(12, "web", a_pod().cpu(2).memory("4Gi")), by)
    assert Counter(placed.values()) == {f"c{n}": 2 for n in range(6)}


def test_default_policy_does_not_use_the_workload_mix() -> None:
    # A server decides a part of a workload like a simulation of the whole workload.
    assert not compile_policy(BUILTIN["hetsched"], REGISTRY).wants_mix
