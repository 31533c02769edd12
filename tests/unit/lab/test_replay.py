"""Replay: queue order, one try each, metrics at the end, samples during the run."""

import pytest

from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.policy import Policy, compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.lab.replay import replay
from tests.builders import a_node, a_pod


@pytest.fixture
def policy() -> Policy:
    return compile_policy(BUILTIN["first-fit"], load_registry())


def test_unschedulable_pod_is_tried_once(policy: Policy) -> None:
    # 8 CPUs: 6 go to the first, 4 do not fit any more, 2 do.
    pods = [a_pod("six").cpu(6).build(), a_pod("four").cpu(4).build(), a_pod("two").cpu(2).build()]
    result, _ = replay(ClusterState([a_node().build()]), pods, policy)
    assert [(row.pod, row.node) for row in result.placements] == [
        ("default/six", "node"),
        ("default/four", None),
        ("default/two", "node"),
    ]
    assert (result.placed, result.pending) == (2, 1)
    assert result.metrics.cpu_utilization == 1.0


def test_replay_does_not_change_its_input_state(policy: Policy) -> None:
    state = ClusterState([a_node().build()])
    before = state.digest()
    replay(state, [a_pod().build()], policy)
    assert state.digest() == before


def test_samples_grow_from_the_first_pods_to_the_last(policy: Policy) -> None:
    state = ClusterState([a_node().cpu(100).gpus(4).build()])
    pods = [a_pod(f"pod-{number:02}").memory("1Mi").gpu(1, milli=100).build() for number in range(20)]
    result, samples = replay(state, pods, policy, samples=10)
    assert [sample.arrived for sample in samples] == list(range(2, 21, 2))
    # 20 pods of 100 milli on 4 cards: demand 2000 of 4000, all of it granted.
    assert samples[-1].arrived_gpu_ratio == pytest.approx(0.5)
    assert samples[-1].metrics == result.metrics
    allocations = [sample.metrics.gpu_allocation for sample in samples]
    assert allocations == pytest.approx([0.05 * step for step in range(1, 11)])


def test_progress_ends_at_the_last_pod(policy: Policy) -> None:
    progress: list[int] = []
    pods = [a_pod(f"pod-{number}").cpu("1m").memory("1Mi").build() for number in range(600)]
    replay(ClusterState([a_node().pods(600).build()]), pods, policy, progress=progress.append)
    assert progress == [256, 512, 600]


def test_fragmentation_is_measured_against_the_workload_not_the_stream(policy: Policy) -> None:
    # One GPU with 500 of 1000 milli free. The stream's own mix (500) can use that; a mix of whole GPUs cannot.
    state = ClusterState([a_node().gpus(1).build()])
    stream = [a_pod("half").gpu(1, milli=500).build()]
    whole = [a_pod("whole").gpu(1).build()]
    fragmentation = [
        replay(state, stream, policy, workload=mix)[0].metrics.gpu_fragmentation for mix in (stream, whole)
    ]
    assert fragmentation == [0.0, 0.5]
