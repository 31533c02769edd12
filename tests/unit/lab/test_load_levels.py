"""A cluster filled beyond its capacity: the values at each load, and the order of ties."""

from __future__ import annotations

from hetsched.contracts.objects.policy import Ties
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.engine.gpu.workload_mix import mix_of
from hetsched.lab.experiments.openb import OverloadSample, fill, shuffled, with_ties
from tests.builders import a_node, a_pod

NODES = [a_node(f"n{number}").gpus(2).build() for number in range(2)]
PODS = [a_pod(f"p{number}").gpu(1, milli=800).build() for number in range(6)]


def test_load_level_includes_its_pods() -> None:
    # 4 cards. Pods of 800: three are 2400 of 4000 = 60 %, a fourth would be 80 %; all of it fits until 4 * 800.
    # After 3: a whole card and 3 * 200, which 800 cannot use: F = 600 = 15 %. After 4: F = 800 = 20 %.
    policy = compile_policy(BUILTIN["first-fit"], load_registry())
    loads = fill(ClusterState(NODES), PODS, policy, mix_of(PODS), [0.6, 0.79, 1.2])
    assert loads == [OverloadSample(0.6, 60.0, 15.0), OverloadSample(0.79, 60.0, 15.0), OverloadSample(1.2, 80.0, 20.0)]


def test_input_state_is_unchanged() -> None:
    state = ClusterState(NODES)
    fill(state, PODS, compile_policy(BUILTIN["fgd"], load_registry()), mix_of(PODS), [1.0])
    assert not state.placed_pods
    assert not state.mix.counts


def test_seed_shuffles_only_names() -> None:
    nodes = [a_node(f"n{number}").gpus(number).build() for number in range(1, 9)]
    first, again, other = shuffled(nodes, 1), shuffled(nodes, 1), shuffled(nodes, 2)
    assert first == again
    assert [node.name for node in first] != [node.name for node in other]
    assert [node.name.partition("-")[2] for node in first] == [node.name for node in nodes]
    assert [node.gpus for node in first] == [node.gpus for node in nodes]
    assert sorted(node.name[:6] for node in first) == [f"{place:06d}" for place in range(8)]


def test_policy_with_random_ties_is_unchanged() -> None:
    assert with_ties(BUILTIN["fgd"], "name", 7).ties == Ties(by="name", seed=7)
    assert with_ties(BUILTIN["fgd"], "shuffled", 7).ties == Ties(by="name", seed=7)
    assert with_ties(BUILTIN["fgd"], "random", 7).ties == Ties(by="random", seed=7)
    assert with_ties(BUILTIN["random"], "name", 7).ties == Ties(by="random", seed=7)
