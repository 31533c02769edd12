"""Planned activations by time or by a metric; a failed activation is reported, never lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hetsched.contracts.api.golden import Expectation
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.policy import PluginUse, PolicySpec, Ties
from hetsched.inventory.models import Cluster
from hetsched.journal.models import AuditEntry
from hetsched.placement.queries import cluster_metrics
from hetsched.placement.queries.cluster_metrics import record_measures
from hetsched.policies import plans
from hetsched.policies.actions import activate, save_draft
from hetsched.policies.goldens import save_golden
from hetsched.policies.models import Measure, Policy, PolicyPlan
from hetsched.policies.plan_contracts import Condition, Measured, Once
from hetsched.policies.plans import evaluate_plans, forecast_switches, remove_plan, save_plan
from tests.builders import a_node, a_pod
from tests.situations import ALICE, a_cluster, placed

pytestmark = pytest.mark.django_db
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
DENSE, LOOSE = 2, 1


@pytest.fixture
def cluster() -> Cluster:
    made = a_cluster(a_node("n1"), a_node("n2"))
    for weight in (1.0, 2.0):
        spec = PolicySpec("mine", (PluginUse("resource-fit"), PluginUse("least-allocated", weight)))
        save_draft(spec, actor=ALICE)
    activate("mine", LOOSE, actor=ALICE, reason="first")
    return made


def minutes(count: float) -> datetime:
    return NOON + timedelta(minutes=count)


def planned(name: str = "night", now: datetime = NOON, **more: Any) -> PolicyPlan:
    given: dict[str, Any] = {"policy_name": "mine", "actor": ALICE, "reason": "agreed", **more}
    return save_plan(name, now=now, **given)


def condition(**changes: Any) -> Condition:
    given: dict[str, Any] = {
        "cluster": "fleet", "metric": "gpuAllocation", "above": 0.8, "above_version": DENSE, "below": 0.5,
        "below_version": LOOSE, "minutes": 3, **changes,
    }  # fmt: skip
    return Condition(**given)


def measured(cluster: Cluster, at: datetime, value: float) -> None:
    Measure.objects.create(cluster=cluster, at=at, figures=Measured(value, 0.1, 0.1, 1.0, 0.0))


def active() -> int:
    return int(Policy.objects.get(name="mine").active_version)


def live(cluster: Cluster, values: list[float], start: datetime = NOON) -> list[int]:
    """Advance a minute with each value; return the active version after each."""
    found = []
    for number, value in enumerate(values):
        at = start + timedelta(minutes=number)
        measured(cluster, at, value)
        evaluate_plans(at)
        found.append(active())
    return found


def test_planned_version_is_activated_and_audited(cluster: Cluster) -> None:
    planned(once=Once(DENSE, minutes(10)))
    evaluate_plans(minutes(9))
    assert active() == LOOSE
    assert evaluate_plans(minutes(10)) == 1
    assert active() == DENSE
    row = PolicyPlan.objects.get()
    assert (row.state, row.last_switched_at) == ("done", minutes(10))
    entry = AuditEntry.objects.filter(action="policy.activate").first()
    assert entry is not None
    assert (entry.actor, entry.role) == ("plan night by alice", "plan")
    assert entry.reason == "agreed (plan night: at 2030-01-01T12:10:00Z)"
    assert evaluate_plans(minutes(20)) == 0  # a plan runs once


def test_missed_time_is_made_up_for_within_bounds(cluster: Cluster) -> None:
    planned("late", once=Once(DENSE, minutes(1), late_minutes=30))
    planned("too-late", once=Once(LOOSE, minutes(1), late_minutes=5))
    evaluate_plans(minutes(20))
    rows = {row.name: row for row in PolicyPlan.objects.all()}
    assert (rows["late"].state, active()) == ("done", DENSE)
    assert "19 minutes late" in rows["late"].note
    assert (rows["too-late"].state, rows["too-late"].note) == (
        "skipped", "skipped: the set time was missed by 19 minutes, and the maximum is 5 minutes",
    )  # fmt: skip
    assert AuditEntry.objects.filter(action="plan.skipped", object_name="too-late").exists()


def test_plan_changed_during_its_execution_starts_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(once=Once(DENSE, minutes(10)))

    def while_it_is_changed(*given: Any, **more: Any) -> Any:
        planned(now=minutes(10), once=Once(LOOSE, minutes(30)))
        return activate(*given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(plans, "activate", while_it_is_changed)
        evaluate_plans(minutes(10))
    row = PolicyPlan.objects.get()
    assert (row.state, row.due_at, active()) == ("waiting", minutes(30), DENSE)
    evaluate_plans(minutes(30))
    assert active() == LOOSE


def test_failing_plan_does_not_block_others(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    planned("broken", once=Once(DENSE, minutes(10)))
    planned("fine", once=Once(DENSE, minutes(10)))

    def look_once(row: PolicyPlan, now: datetime) -> bool:
        if row.name == "broken":
            raise RuntimeError("whatever")
        return real(row, now)

    real = plans._evaluate_once
    monkeypatch.setattr(plans, "_evaluate_once", look_once)
    assert evaluate_plans(minutes(10)) == 1
    assert active() == DENSE


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"])
def test_time_out_of_range_is_rejected(cluster: Cluster, at: str) -> None:
    with pytest.raises(InputError, match=r"is in the past|ten years"):
        planned(once=Once(DENSE, datetime.fromisoformat(at)))


def test_metric_beyond_a_bound_activates_the_version_and_back(cluster: Cluster) -> None:
    planned(condition=condition())
    # Above 0.8 from minute 1 on, for 3 minutes at minute 4; 0.6 is between the bounds; below 0.5 from 6 on, until 9.
    values = [0.7, 0.9, 0.9, 0.9, 0.9, 0.6, 0.4, 0.4, 0.4, 0.4]
    assert live(cluster, values) == [LOOSE] * 4 + [DENSE] * 5 + [LOOSE]
    reasons = AuditEntry.objects.filter(action="policy.activate", role="plan").order_by("id").values_list("reason")
    assert [text for (text,) in reasons] == [
        "agreed (plan night: gpuAllocation of fleet is 0.9, above 0.8 for 3 minutes)",
        "agreed (plan night: gpuAllocation of fleet is 0.4, below 0.5 for 3 minutes)",
    ]


def test_dip_restarts_the_period_and_values_between_the_bounds_do_not(cluster: Cluster) -> None:
    planned(condition=condition())
    assert set(live(cluster, [0.9, 0.9, 0.9, 0.79, 0.9, 0.9, 0.9, 0.51, 0.8])) == {LOOSE}


def test_overridden_plan_does_not_activate_again_on_the_same_side(cluster: Cluster) -> None:
    planned(condition=condition())
    assert live(cluster, [0.9] * 4)[-1] == DENSE
    activate("mine", LOOSE, actor=ALICE, reason="not today")
    assert set(live(cluster, [0.9] * 10, start=minutes(4))) == {LOOSE}


def test_gap_in_the_metrics_restarts_the_period(cluster: Cluster) -> None:
    planned(condition=condition())
    live(cluster, [0.9, 0.9])
    assert live(cluster, [0.9], start=minutes(30)) == [LOOSE]  # no check for 28 minutes
    assert live(cluster, [0.9, 0.9, 0.9], start=minutes(31))[-1] == DENSE


def test_plan_without_recent_metrics_does_nothing(cluster: Cluster) -> None:
    planned(condition=condition())
    live(cluster, [0.9] * 3)
    evaluate_plans(minutes(10))
    row = PolicyPlan.objects.get()
    assert (row.note, row.last_value, active()) == ("no fresh sample", None, LOOSE)


def test_failed_activation_is_reported_and_retried(cluster: Cluster) -> None:
    spread = PolicySpec("mine", (PluginUse("resource-fit"),), Ties("random", _seed_for("n2")))
    version = save_draft(spec=spread, actor=ALICE).version
    manifest = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}"
    save_golden(
        "first", cluster=cluster, manifest=manifest, expectation=Expectation(nodes=("n1",)), actor=ALICE, reason="r"
    )
    row = planned(condition=condition(above_version=version))
    assert row.note == f"version {version} cannot be activated now: it breaks first"
    assert set(live(cluster, [0.9] * 9)) == {LOOSE}
    row.refresh_from_db()
    assert row.state == "refused"
    assert "breaks a golden placement: first" in row.note
    # At minute 3, and once more 3 minutes later.
    refused = AuditEntry.objects.filter(action="policy.refused", object_name="mine")
    assert refused.count() == 2
    assert refused[0].details["code"] == "GoldenPlacementBroken"


def _seed_for(node: str) -> int:
    """Return a seed that selects this one of two equal nodes for the pod default/p."""
    from hetsched.engine.cluster.state import ClusterState
    from hetsched.engine.framework.cycle import Scheduler
    from hetsched.engine.framework.policy import compile_policy
    from hetsched.engine.framework.registry import load_registry

    for seed in range(100):
        spec = PolicySpec("mine", (PluginUse("resource-fit"),), Ties("random", seed))
        state = ClusterState([a_node("n1").build(), a_node("n2").build()])
        if Scheduler(state, compile_policy(spec, load_registry())).schedule(a_pod("p").build()).node == node:
            return seed
    raise AssertionError("no seed does")


def test_check_is_claimed_once(cluster: Cluster) -> None:
    planned(once=Once(DENSE, minutes(1)))
    taken = PolicyPlan.objects.filter(due_at=minutes(1)).update(due_at=minutes(2))
    assert (taken, evaluate_plans(minutes(1))) == (1, 0)
    assert evaluate_plans(minutes(2)) == 1  # the claiming process died: the plan runs a minute later


def test_disabled_plan_does_nothing(cluster: Cluster) -> None:
    planned(once=Once(DENSE, minutes(1)))
    planned(once=Once(DENSE, minutes(1)), enabled=False)
    evaluate_plans(minutes(2))
    assert (PolicyPlan.objects.get().state, active()) == ("off", LOOSE)
    assert AuditEntry.objects.filter(action="plan.disable", object_name="night").exists()
    remove_plan("night", actor=ALICE, reason="over")
    assert not PolicyPlan.objects.exists()


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({}, "PlanInvalid"),
        ({"once": Once(DENSE, minutes(-1))}, "PlanInvalid"),
        ({"once": Once(9, minutes(1))}, "PolicyVersionUnknown"),
        ({"condition": condition(below=0.8)}, "PlanInvalid"),
        ({"condition": condition(above=1.5)}, "PlanInvalid"),
        ({"condition": condition(below_version=DENSE)}, "PlanInvalid"),
        ({"condition": condition(cluster="nosuch")}, "ClusterUnknown"),
        ({"once": Once(DENSE, minutes(1)), "policy_name": "nosuch"}, "PolicyUnknown"),
        ({"once": Once(DENSE, minutes(1)), "reason": ""}, "ReasonMissing"),
        ({"once": Once(DENSE, minutes(1)), "name": "preview"}, "PlanNameInvalid"),
    ],
)
def test_invalid_plan_is_rejected(cluster: Cluster, more: dict[str, Any], code: str) -> None:
    with pytest.raises(InputError) as refused:
        planned(**more)
    assert refused.value.code == code
    assert not PolicyPlan.objects.exists()


def test_condition_is_tested_on_recorded_metrics(cluster: Cluster) -> None:
    assert forecast_switches(condition(), now=NOON).known is False
    values = [0.7, 0.9, 0.9, 0.9, 0.9, 0.6, 0.4, 0.4, 0.4, 0.4]
    for number, value in enumerate(values):
        measured(cluster, minutes(number), value)
    found = forecast_switches(condition(), now=minutes(10))
    assert (found.known, found.samples) == (True, 10)
    assert [(switch.at, switch.version) for switch in found.switches] == [(minutes(4), DENSE), (minutes(9), LOOSE)]


def test_metrics_are_recorded_once_a_minute(cluster: Cluster) -> None:
    placed(cluster, "n1", a_pod("p").cpu("4"))
    now = NOON + timedelta(seconds=30)
    assert (record_measures(now), record_measures(now)) == (1, 0)
    figures = Measure.objects.get(at=NOON).figures
    # 4 of 16 CPUs are requested; there is no GPU.
    assert (figures.cpu_utilization, figures.gpu_allocation, figures.pending_pods) == (0.25, None, 0.0)
    record_measures(NOON + timedelta(days=9))
    assert not Measure.objects.filter(at=NOON).exists()


def test_failing_measurement_does_not_block_other_clusters(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    other = a_cluster(a_node("m1"), name="other")

    def measure(one: Cluster) -> Measured:
        if one.pk == cluster.pk:
            raise RuntimeError("whatever")
        return real(one)

    real = cluster_metrics.measure
    monkeypatch.setattr(cluster_metrics, "measure", measure)
    assert record_measures(NOON) == 1
    assert [row.cluster_id for row in Measure.objects.all()] == [other.pk]
