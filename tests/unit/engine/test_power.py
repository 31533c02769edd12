"""Power: nodes allowed by their state and headroom, and the preferred node."""

from __future__ import annotations

import pytest

from hetsched.contracts.objects.node_report import PowerReport
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.cycle import Scheduler
from tests.builders import PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import active, ask, policy_of, score


def node(name: str = "n", state: str | None = "on", headroom: int | None = 1000):
    return a_node(name).having(power=PowerReport(state, headroom))


def drawing(watts: int | None, name: str = "p"):
    return a_pod(name).shaped(expected_watts=watts)


def fits(state: ClusterState, pod: PodBuilder) -> bool:
    (answer,) = active("power").instance.filter(state.compile(pod.build()), state.all_rows)
    return bool(answer)


@pytest.mark.parametrize("state", ["off", "maintenance"])
def test_powered_off_node_is_excluded(state: str) -> None:
    answer = ask("power", drawing(None), [node(state=state)])
    assert [refusal.code for refusal in answer.reasons["n"]] == ["PowerOff"]


@pytest.mark.parametrize(("watts", "expected"), [(800, True), (801, False), (None, True)])
def test_headroom_is_reduced_by_later_placements(watts: int | None, expected: bool) -> None:
    # 1000 W at the report, 200 W placed since: 800 are left.
    state = ClusterState([node().build()])
    state.assume(state.compile(drawing(200, "earlier").build()), 0)
    assert fits(state, drawing(watts)) is expected
    state.forget("default/earlier")
    assert fits(state, drawing(1000)) is True


def test_pods_running_at_the_report_are_in_its_headroom() -> None:
    running = drawing(600, "r").running_on("n")
    assert ask("power", drawing(1000), [node()], [running]).fits == {"n": True}
    state = ClusterState([node().build()], [running.build()])
    state.forget("default/r")  # and releases its draw when it ends
    assert fits(state, drawing(1600)) is True


def test_new_report_resets_the_reserved_draw() -> None:
    state = ClusterState([node().build()])
    state.assume(state.compile(drawing(900, "earlier").build()), 0)
    state.apply_report(node(headroom=300).build())
    assert fits(state, drawing(300)) is True
    assert fits(state, drawing(301)) is False


def test_rejection_states_draw_and_headroom() -> None:
    answer = ask("power", drawing(1200), [node()])
    (refusal,) = answer.reasons["n"]
    assert (refusal.code, refusal.field) == ("PowerInsufficient", "hetsched.io/expected-watts")
    assert refusal.message == "the pod is expected to draw 1200 W, but the node has at most 1000 W of headroom"


@pytest.mark.parametrize(
    ("watts", "headroom", "code"),
    [(None, 1000, "PowerDrawUnknown"), (100, None, "PowerHeadroomUnknown")],
)
def test_unknown_power_excludes_a_node_only_by_policy(watts: int | None, headroom: int | None, code: str) -> None:
    assert ask("power", drawing(watts), [node(headroom=headroom)]).fits == {"n": True}
    answer = ask("power", drawing(watts), [node(headroom=headroom)], params={"unknown": "refuse"})
    assert [(refusal.code, refusal.unknown) for refusal in answer.reasons["n"]] == [(code, True)]


@pytest.mark.parametrize(
    ("state", "headroom", "points"),
    [
        ("on", 1000, 50.0),  # 200 W came since: 100 * (1000 - 200 - 300) / 1000
        ("capped", 1000, 25.0),  # 0.5 of it
        ("saving", 1000, 25.0),
        (None, 1000, 50.0),
        ("on", None, 50.0),  # the remaining power is unknown
        ("on", 400, 0.0),  # 400 - 200 - 300 is below 0
    ],
)
def test_much_power_left_is_preferred(state: str | None, headroom: int | None, points: float) -> None:
    cluster = ClusterState([node(state=state, headroom=headroom).build()])
    cluster.assume(cluster.compile(drawing(200, "earlier").build()), 0)
    chosen, request = active("power"), cluster.compile(drawing(300).build())
    assert chosen.instance.score(request, cluster.all_rows).tolist() == [points]


def test_cluster_without_power_facts_is_unrestricted() -> None:
    assert ask("power", drawing(100), [a_node("n")]).skipped
    assert score("power", drawing(100), [a_node("n")]) is None


def test_power_is_never_a_reason_that_a_pod_never_fits() -> None:
    state = ClusterState([node("a", "off").build(), node("b", "on", 10).build()])
    diagnosis = diagnose(Scheduler(state, policy_of("power")), drawing(5000).build())
    assert diagnosis.verdict == "not-now"
    assert sorted(reason.code for reason in diagnosis.reasons) == ["PowerInsufficient", "PowerOff"]


def test_report_of_another_fact_keeps_later_placements() -> None:
    state = ClusterState([node().build()])
    state.assume(state.compile(drawing(900, "earlier").build()), 0)
    state.apply_report(node().using(cpu="1").build())
    assert fits(state, drawing(100)) is True
    assert fits(state, drawing(101)) is False


def test_export_has_the_current_headroom() -> None:
    state = ClusterState([node().build()])
    state.assume(state.compile(drawing(900, "earlier").build()), 0)
    assert state.report_now(0).power == PowerReport("on", 100)
