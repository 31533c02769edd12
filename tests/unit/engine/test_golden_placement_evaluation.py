"""Evaluation of golden placements on a state."""

from __future__ import annotations

from hetsched.contracts.api.golden import Expectation, GoldenState
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.simulation.golden_placements import Golden, judge
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import policy_of


def test_running_pod_of_the_same_name_is_replaced_and_restored() -> None:
    scheduler = Scheduler(ClusterState([a_node("n").cpu("8").build()]), policy_of("resource-fit"))
    pod = a_pod("p").cpu(6).build()
    scheduler.schedule(pod)
    before = scheduler.state.digest()
    judged = judge(scheduler, Golden("g", "fleet", pod, Expectation(nodes=("n",))))
    assert (judged.state, judged.got) == (GoldenState.KEPT, "n")
    assert pod.key in scheduler.state.placed_pods
    assert scheduler.state.digest() == before
