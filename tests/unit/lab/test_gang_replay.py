"""Replay of queues with gangs: members of a gang that is incomplete at the end do not count."""

from __future__ import annotations

from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.policy import Policy, compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.lab.replay import replay
from tests.builders import a_node, a_pod


def policy(*plugins: str) -> Policy:
    spec = PolicySpec("test", tuple(PluginUse(plugin) for plugin in plugins))
    return compile_policy(spec, load_registry())


def queue() -> list[PodSpec]:
    """Return two gangs of 4 alternately, then two plain pods; each pod requests 1 CPU."""
    mixed = [a_pod(f"{job}-{number}").gang(job, 4) for number in range(4) for job in ("a", "b")]
    return [pod.build() for pod in (*mixed, a_pod("plain-0"), a_pod("plain-1"))]


def test_rejected_gang_leaves_capacity_for_later_pods() -> None:
    # 6 CPUs: 4 for a; b finds 2 of the 4 it needs and takes none; both plain pods run.
    state = ClusterState([a_node().cpu(6).build()])
    result, samples = replay(state, queue(), policy("gang-sort", "resource-fit", "gang"), samples=5)
    running = [row.pod.removeprefix("default/") for row in result.placements if row.node]
    assert running == ["a-0", "a-1", "a-2", "a-3", "plain-0", "plain-1"]
    assert (result.placed, result.pending) == (6, 4)
    assert result.metrics.cpu_utilization == 1.0
    assert samples[-1].pending == 4


def test_gangs_are_incomplete_without_the_plugin() -> None:
    state = ClusterState([a_node().cpu(6).build()])
    result, _ = replay(state, queue(), policy("priority-sort", "resource-fit"))
    running = [row.pod.removeprefix("default/") for row in result.placements if row.node]
    assert running == ["a-0", "b-0", "a-1", "b-1", "a-2", "b-2"]


def test_gang_without_its_last_member_is_pending() -> None:
    state = ClusterState([a_node().build()])
    pods = [a_pod(f"g-{number}").gang("g", 3).build() for number in range(2)]
    result, _ = replay(state, pods, policy("gang-sort", "resource-fit", "gang"))
    assert (result.placed, result.metrics.cpu_utilization) == (0, 0.0)


def test_order_by_shares_follows_placements() -> None:
    # 4 CPUs. The first pod of `big` does not fit and costs only it its turn: 0 : 1, 1 : 1, 2 : 1 and 2 : 2 quarters.
    state = ClusterState([a_node().cpu(4).build()])
    pods = [a_pod("huge", "big").cpu(5), *(a_pod(f"{n}", name) for name in ("big", "small") for n in range(3))]
    result, _ = replay(state, [pod.build() for pod in pods], policy("fair-share", "resource-fit"))
    assert [row.pod for row in result.placements if row.node] == ["small/0", "big/0", "big/1", "small/1"]
