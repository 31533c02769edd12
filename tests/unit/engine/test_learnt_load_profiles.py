"""A pod without a stated load profile uses the one learnt from earlier pods of its controller."""

from __future__ import annotations

from hetsched.contracts.objects.cluster import ClusterContent, PodUsage
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.units import CPU
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.numa.cpu_grants import pairings
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import policy_of

NODE = a_node("n").cpu(4).zone("node-0", "0-3", cpu="4", siblings="0,2;1,3").build()


def pinned(name: str, controller: str = "") -> PodSpec:
    return a_pod(name).cpu(1).guaranteed().numa(True, "exclusive").having(controller=controller).build()


def measured(controller: str, millis: int) -> tuple[PodUsage, ...]:
    return tuple(PodUsage("default", f"{controller}-{i}", controller, {CPU: millis}) for i in range(5))


def test_busy_pod_shares_with_the_one_learnt_to_be_idle() -> None:
    # Cores (0, 2) and (1, 3): unknown and idle take a core each; a pod learnt to be busy shares the idle one's.
    samples = measured("Job/busy", 900) + measured("Job/idle", 50)
    engine = Scheduler(
        ClusterState.of(ClusterContent(nodes=(NODE,), pod_usages=samples)), policy_of("resource-fit", "numa-fit")
    )
    for pod in (pinned("unknown"), pinned("idle", "Job/idle"), pinned("busy", "Job/busy")):
        engine.schedule(pod)
    zones = {key: placed.allocation.zones[0].cpus for key, placed in engine.state.placed_pods.items()}
    assert zones == {"default/unknown": "0", "default/idle": "1", "default/busy": "3"}
    (sentence,) = pairings(engine.state, "default/busy")
    assert sentence == "CPU 3 shares a core with CPU 1 of default/idle, which is idle"
