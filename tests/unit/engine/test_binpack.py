"""RequestedToCapacityRatio: the worked cases of both interpretations."""

from __future__ import annotations

import pytest

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.decision_matrix import matrix
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import score as evaluated

LINE = [[0, 0], [100, 10]]


def score(params, *, cpu_use: str, cards_use: int, pod_cpu: str, pod_cards: int) -> float:
    """Score a node of 32 CPUs and 4 cards that already runs something."""
    node = a_node("n").cpu(32).memory("64Gi").gpus(4, "T4").build()
    running = a_pod("r").cpu(cpu_use).running_on("n")
    pod = a_pod("p").cpu(pod_cpu)
    state = ClusterState([node], [(running.gpu(cards_use) if cards_use else running).build()])
    policy = compile_policy(PolicySpec("b", (PluginUse("binpack", params=params),)), load_registry())
    (row,) = matrix(Scheduler(state, policy), (pod.gpu(pod_cards) if pod_cards else pod).build())
    return row.scores[0].raw


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("plain", 62.5),  # GPU (2+1)/4 -> 7.5, CPU (8+8)/32 -> 5; (7.5 + 5) / 2 = 6.25 of 10
        ("upstream", 63.0),  # 75 and 50; 62.5 rounds half up
    ],
)
def test_two_resources_are_averaged(mode, expected):
    params = {"shape": LINE, "resources": {"cpu": 1, "nvidia.com/gpu": 1}, "mode": mode}
    assert score(params, cpu_use="8", cards_use=2, pod_cpu="8", pod_cards=1) == expected


@pytest.mark.parametrize(
    ("cpu_use", "plain", "upstream"),
    [
        ("0", 40.0, 40.0),  # 8/32 = 25 %: 8 * 25/50 = 4
        ("8", 80.0, 80.0),  # 50 %: the middle point
        ("16", 90.0, 90.0),  # 75 %: 8 + 2 * 25/50 = 9
    ],
)
def test_shape_with_three_points(cpu_use, plain, upstream):
    shape = {"shape": [[0, 0], [50, 8], [100, 10]], "resources": {"cpu": 1}}
    case = {"cpu_use": cpu_use, "cards_use": 0, "pod_cpu": "8", "pod_cards": 0}
    assert score({**shape, "mode": "plain"}, **case) == plain
    assert score({**shape, "mode": "upstream"}, **case) == upstream


def test_upstream_ignores_resources_with_score_0():
    # GPU 4/4 = 100 %, the other resource 0 %: plain (10 + 0) / 2 = 5, upstream only 100.
    resources = {"nvidia.com/gpu": 1, "ephemeral-storage": 1}
    node = a_node("n").cpu(32).memory("64Gi").gpus(4, "T4").offering("ephemeral-storage", "10Gi").build()
    pod = a_pod("p").cpu("1").gpu(4).build()
    for mode, expected in (("plain", 50.0), ("upstream", 100.0)):
        use = PluginUse("binpack", params={"shape": LINE, "resources": resources, "mode": mode})
        scheduler = Scheduler(ClusterState([node]), compile_policy(PolicySpec("b", (use,)), load_registry()))
        assert matrix(scheduler, pod)[0].scores[0].raw == expected


def test_falling_shape_spreads_pods():
    # Spread: 10 at empty, 0 at full; 9.6 of 32 CPUs = 30 % -> 7.
    params = {"shape": [[0, 10], [100, 0]], "resources": {"cpu": 1}}
    assert score(params, cpu_use="8600m", cards_use=0, pod_cpu="1", pod_cards=0) == pytest.approx(70.0)


def test_points_must_rise():
    use = PluginUse("binpack", params={"shape": [[50, 1], [50, 2]]})
    with pytest.raises(InputError) as refused:
        compile_policy(PolicySpec("b", (use,)), load_registry())
    assert refused.value.code == "PolicyParamInvalid"


def scored(mode: str, shape: list[list[int]], node: NodeBuilder, pod: PodBuilder, **resources: int) -> float:
    params = {"shape": shape, "resources": resources or {"cpu": 1}, "mode": mode}
    return evaluated("binpack", pod, [node], params=params)["n"]


@pytest.mark.parametrize(
    ("mode", "shape", "points"),
    [
        # 3 of 100 CPUs on a line from 0 to 10 points over 9 percent: 10 * 10 * 3 / 9 = 33.3, truncated 33
        ("plain", [[0, 0], [9, 10]], pytest.approx(100 / 3)),
        ("upstream", [[0, 0], [9, 10]], 33.0),
        # and down: 100 - 33.3 = 66.7; -300 / 9 = -33.3 is cut towards zero, 100 - 33 = 67
        ("plain", [[0, 10], [9, 0]], pytest.approx(200 / 3)),
        ("upstream", [[0, 10], [9, 0]], 67.0),
        # outside the points the curve is flat
        ("plain", [[10, 4], [20, 9]], 40.0),
        ("upstream", [[10, 4], [20, 9]], 40.0),
        ("plain", [[0, 9], [2, 4]], 40.0),
        ("upstream", [[0, 9], [2, 4]], 40.0),
    ],
)
def test_between_two_points_upstream_truncates(mode: str, shape: list[list[int]], points: float) -> None:
    assert scored(mode, shape, a_node("n").cpu(100), a_pod("p").cpu(3)) == points


@pytest.mark.parametrize("mode", ["plain", "upstream"])
def test_request_above_the_capacity_scores_as_full(mode: str) -> None:
    # 16 of 8 CPUs: the point at 100 %, which is 3 of 10.
    assert scored(mode, [[0, 9], [100, 3]], a_node("n").cpu(8), a_pod("p").cpu(16)) == 30.0


@pytest.mark.parametrize("mode", ["plain", "upstream"])
def test_resource_missing_on_a_node_is_ignored(mode: str) -> None:
    # CPU 4 of 8 alone counts: 50; without any weighted resource the weights add up to 0, and the score is 0.
    node, pod = a_node("n").cpu(8), a_pod("p").cpu(4)
    assert scored(mode, LINE, node, pod, **{"cpu": 1, "nvidia.com/gpu": 9}) == 50.0
    assert scored(mode, [[0, 5], [100, 5]], node, pod, **{"nvidia.com/gpu": 9}) == 0.0
