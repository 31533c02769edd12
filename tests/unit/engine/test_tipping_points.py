"""Tipping points of weights: just below the point the same node wins, just above it the named one."""

from __future__ import annotations

import msgspec
from hypothesis import event, given, settings
from hypothesis import strategies as st

from hetsched.contracts.api.decision import Tipping
from hetsched.contracts.objects.policy import PluginUse
from hetsched.engine.explain.tipping_points import tipping
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import Policy, compile_policy
from hetsched.engine.simulation.what_if import what_if
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import REGISTRY, built, cluster, policy_of, scheduler

HAIR = 1e-4


def weighted(policy: Policy, plugin: str, weight: float) -> Policy:
    """Return the policy with one weight changed."""
    uses = tuple(
        msgspec.structs.replace(use, weight=weight) if use.name == plugin else use for use in policy.spec.plugins
    )
    return compile_policy(msgspec.structs.replace(policy.spec, plugins=uses), REGISTRY)


def test_tipping_point_is_where_two_totals_meet() -> None:
    # Binpack wants the fuller node, least-allocated the empty one. Of 10 CPUs, b has 4 in use; memory does not count.
    #   binpack           a  1 of 10 -> 10   b  5 of 10 -> 50
    #   least-allocated   a  9 of 10 -> 90   b  5 of 10 -> 50
    # With weights 1 and 3: a = 10 + 270 = 280, b = 50 + 150 = 200, so a wins by 80.
    #   binpack at w:          10 w + 270 = 50 w + 150  ->  w = 3, b wins above it
    #   least-allocated at w:  10 + 90 w = 50 + 50 w    ->  w = 1, b wins below it
    policy = policy_of(
        "resource-fit",
        PluginUse("binpack", weight=1, params={"resources": {"cpu": 1}}),
        PluginUse("least-allocated", weight=3, params={"cpu": 1, "memory": 0}),
    )
    nodes = [a_node("a").cpu(10), a_node("b").cpu(10)]
    found = tipping(scheduler(nodes, [a_pod("r").cpu(4).running_on("b")], policy=policy), built(a_pod()))
    assert found is not None
    assert (found.node, found.runner_up, found.margin) == ("a", "b", 80.0)
    assert [(point.plugin, point.weight, point.at, point.side, point.node) for point in found.points] == [
        ("binpack", 1.0, 3.0, "above", "b"), ("least-allocated", 3.0, 1.0, "below", "b"),
    ]  # fmt: skip


def test_weight_of_0_is_no_tipping_point() -> None:
    # If only binpack distinguishes the nodes, they are equal at weight 0, and there is no weight below it.
    policy = policy_of("resource-fit", PluginUse("binpack", params={"resources": {"cpu": 1}}))
    nodes = [a_node(name).cpu(7) for name in ("a", "b")]
    found = tipping(scheduler(nodes, [a_pod("r").cpu(3).running_on("b")], policy=policy), built(a_pod()))
    assert found is not None
    assert (found.node, found.runner_up, found.points) == ("b", "a", ())


def test_single_node_has_no_tipping_point() -> None:
    found = tipping(scheduler([a_node("a"), a_node("b").cordoned()], policy="hetsched"), built(a_pod()))
    assert found == Tipping("default/pod", "a", None, None, ())


def test_unplaceable_pod_has_none() -> None:
    assert tipping(scheduler([a_node("a").cordoned()], policy="hetsched"), built(a_pod())) is None


def test_what_if_has_tipping_points_only_with_explain() -> None:
    state, policy = cluster([a_node("a"), a_node("b").cpu(16)]), compile_policy(BUILTIN["hetsched"], REGISTRY)
    plain, explained = (
        what_if(state, policy, [built(a_pod())], evaluated_at="", explain=explain).document()
        for explain in (False, True)
    )
    assert "tipping" not in plain
    (tipping,) = explained["tipping"]
    assert tipping["node"] == explained["placements"][0]["node"]
    ranked = sorted((row for row in explained["nodes"] if row["feasible"]), key=lambda row: row["rank"])
    assert tipping["margin"] == round(ranked[0]["total"] - ranked[1]["total"], 6)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[NodeBuilder], list[PodBuilder]]:
    """Draw nodes of different sizes and fillings, one of them preferred, one tainted softly."""
    count = draw(st.integers(2, 6))
    nodes = [
        a_node(f"n{i}").cpu(draw(st.integers(4, 32))).memory(f"{draw(st.integers(8, 64))}Gi") for i in range(count)
    ]
    nodes[draw(st.integers(0, count - 1))].labelled(disk="ssd")
    nodes[draw(st.integers(0, count - 1))].tainted("busy", effect="PreferNoSchedule")
    running = [
        a_pod(f"r{i}").cpu(draw(st.integers(0, 2))).memory(f"{draw(st.integers(0, 6))}Gi").running_on(f"n{i}")
        for i in range(count)
    ]
    return nodes, running


@settings(max_examples=80)
@given(fleets())
def test_weight_beyond_the_point_selects_the_named_node(drawn: tuple[list[NodeBuilder], list[PodBuilder]]) -> None:
    nodes, running = drawn
    state, pod = cluster(nodes, running), built(a_pod().preferring(5, "disk", "In", "ssd"))
    policy = compile_policy(BUILTIN["hetsched"], REGISTRY)
    found = tipping(Scheduler(state, policy), pod)
    for point in () if found is None else found.points:
        hair = HAIR if point.side == "above" else -HAIR
        if not HAIR < point.at < 1000 - HAIR or abs(point.at - point.weight) <= HAIR:
            continue
        before, beyond = (
            tipping(Scheduler(state, weighted(policy, point.plugin, weight)), pod)
            for weight in (point.at - hair, point.at + hair)
        )
        event(point.plugin)
        assert (before and before.node, beyond and beyond.node) == (found and found.node, point.node), point
