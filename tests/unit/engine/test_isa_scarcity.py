"""isa-scarcity: features that few nodes provide are kept for the pods that need them."""

from __future__ import annotations

import math

import pytest

from hetsched.contracts.objects.policy import PluginUse
from tests.builders import NodeBuilder, a_node, a_pod
from tests.unit.engine.fleet import policy_of, scheduler, score

# Ten nodes: 5 rv64gc, 3 with Zba and Zbb, 1 with V, 1 with all of it.
FLEET = [
    *(a_node(f"gc-{i}").isa("rv64gc") for i in range(5)),
    *(a_node(f"zb-{i}").isa("rv64gc_zba_zbb") for i in range(3)),
    a_node("v").isa("rv64gcv"),
    a_node("wide").isa("rv64gcv_zba_zbb_zbs"),
]


def scored(measure: str, need: str, fleet: list[NodeBuilder] = FLEET) -> dict[str, float]:
    found = score("isa-scarcity", a_pod().isa(need), fleet, params={"measure": measure})
    assert found is not None
    return {name: value for name, value in found.items() if name in ("gc-0", "zb-0", "v", "wide", "other")}


def test_share_counts_the_replacements_among_capable_nodes() -> None:
    # All 10 run rv64gc. Substitutes: gc 10, zb 3 + 1, v 1 + 1, wide 1.
    assert scored("share", "rv64gc") == {"gc-0": 100, "zb-0": 40, "v": 20, "wide": 10}
    # Of 4 that run zba and zbb, all can replace a zb node, 1 the wide one.
    found = scored("share", "rv64gc_zba_zbb")
    assert (found["zb-0"], found["wide"]) == (100, 25)


def test_log_mode_uses_the_logarithm_of_the_surplus() -> None:
    # 100 * ln 4 / ln 10 = 60.2,  100 * ln 2 / ln 10 = 30.1,  ln 1 = 0
    found = scored("log", "rv64gc")
    assert found == pytest.approx({"gc-0": 100, "zb-0": 60.206, "v": 30.103, "wide": 0}, abs=1e-3)
    assert found["zb-0"] == 100 * math.log(4) / math.log(10)


def test_affinity_ratio_would_prefer_a_rare_vector_node() -> None:
    # 6 items of 7 on v, of 8 on zb, of 10 on wide: the ratio would rather fill the only vector node.
    assert scored("ratio", "rv64gc") == pytest.approx({"gc-0": 100, "zb-0": 75, "v": 85.71, "wide": 60}, abs=0.01)


def test_rare_node_costs_nothing_for_pods_that_need_it() -> None:
    assert scored("log", "rv64gcv_zba_zbb_zbs")["wide"] == 100
    assert scored("share", "rv64gcv_zba_zbb_zbs")["wide"] == 100


def test_undescribed_node_is_not_rare() -> None:
    assert scored("share", "rv64gc", [*FLEET, a_node("other").isa(None)])["other"] == 100


def test_pods_without_a_need_are_left_to_other_scores() -> None:
    assert score("isa-scarcity", a_pod(), FLEET) is None


def test_narrow_pods_fill_common_nodes_before_rare_ones() -> None:
    fleet = [
        a_node(name).isa(isa).pods(1) for name, isa in (("a", "rv64gcv"), ("b", "rv64gc_zba_zbb"), ("c", "rv64gc"))
    ]
    fleet.append(a_node("d").isa("rv64gc_zba_zbb").pods(1))
    deciding = scheduler(fleet, policy=policy_of("isa-match", "resource-fit", PluginUse("isa-scarcity")))
    order = [deciding.schedule(a_pod(f"pod-{i}").isa("rv64gc").build()).node for i in range(5)]
    assert order == ["c", "b", "d", "a", None]
