"""The ISAMatch experiment: its tasks, its results and the percentages of the published seed."""

from __future__ import annotations

from collections import Counter

import pytest

from hetsched.engine.framework.policy import Policy, compile_policy
from hetsched.lab.experiments import isamatch
from hetsched.lab.experiments.isamatch import FITTED_SEED, KUBE_1_18, figure_5, placed, regret, with_scarcity
from hetsched.lab.isa_cluster import GROUPS, tasks
from hetsched.lab.policies import POLICIES
from tests.unit.engine.fleet import REGISTRY


def policy(name: str) -> Policy:
    return compile_policy(POLICIES[name], REGISTRY)


def test_fitted_seed_gives_the_published_tasks() -> None:
    # x0 = 5708: first tasks (170, 144), (200, 96), (60, 224); 17620m and 21088Mi in all
    sizes = [(pod.shape.request("cpu"), pod.shape.request("memory") // 2**20) for pod in tasks(GROUPS[0], FITTED_SEED)]
    assert sizes[:3] == [(170, 144), (200, 96), (60, 224)]
    assert (sum(cpu for cpu, _ in sizes), sum(memory for _, memory in sizes)) == (17620, 21088)
    assert sum(cpu >= 400 for cpu, _ in sizes) == 10


def test_default_policy_of_1_18_spreads_tasks_as_published() -> None:
    # All nodes {19, 19, 22, 21, 19}: A = 22 + 21 + 19 = 62, B = 22 + 19 = 41.
    # RISC-V nodes {30, 33, 37}: C = 30 + 37 = 67.
    kube = compile_policy(KUBE_1_18, REGISTRY)
    everywhere = Counter(placed(kube, GROUPS[0], FITTED_SEED))
    assert [everywhere[f"node{number}"] for number in range(1, 6)] == [19, 19, 22, 21, 19]
    limited = Counter(placed(kube, GROUPS[2], FITTED_SEED))
    assert limited == {"node3": 30, "node4": 33, "node5": 37}


def test_isamatch_overflows_when_the_closest_node_is_full() -> None:
    # RV64IMFD: node3 (1.0) takes 94, node5 (0.8) the rest, the first of them index 89: node3 is full at 16000m
    nodes = placed(policy("isamatch"), GROUPS[1], FITTED_SEED)
    assert Counter(nodes) == {"node3": 94, "node5": 6}
    assert nodes.index("node5") == 89
    # RV64I: affinities 1/4, 1/2, 1/5 on node3, node4, node5
    assert Counter(placed(policy("isamatch"), GROUPS[0], FITTED_SEED)) == {"node4": 94, "node3": 6}


def test_figure_5_uses_both_tie_breaks() -> None:
    # 14 -> 9 -> 7; affinities 3/4, 3/4, 3/5; RV64IMFD on 3 nodes against RV64IMFC on 2; uses .6, .3, .5 -> .3
    assert [value for _, value, _ in figure_5(policy("isamatch"))] == [14, 9, 7, 0.75, 3, 30]


def test_scarcity_spares_wide_jobs_the_cost_of_the_published_order() -> None:
    ours, theirs = (regret(compile_policy(spec, REGISTRY), 1) for spec in (with_scarcity(2), POLICIES["isamatch"]))
    assert ours <= 0.5 * theirs
    assert ours <= 0.1 * regret(policy("random"), 1)


def test_expectations_hold_and_a_failing_policy_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isamatch, "_OTHER_SEEDS", range(1, 3))
    monkeypatch.setattr(isamatch, "_REGRET_SEEDS", range(1, 3))
    steps: list[tuple[int, int]] = []
    made = isamatch.run(lambda done, total: steps.append((done, total)))
    assert made.held
    assert steps[-1] == (6, 6)
    assert {row.published for row in made.rows if row.metric == "% right, seed 5708"} == {62, 41, 67, 100}
    monkeypatch.setitem(POLICIES, "hetsched", POLICIES["default-kube"])
    failed = [e.text for e in isamatch.run(lambda done, total: None).expectations if not e.held]
    assert "hetsched, extensions, no label: at least 38 % right" in failed
