"""The admin creates, changes and removes golden placements and plans, through the actions and with a reason."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from hetsched.inventory.models import Cluster
from hetsched.journal.models import AuditEntry
from hetsched.policies.actions import save_draft
from hetsched.policies.models import GoldenPlacement, Policy, PolicyPlan, PolicyRevision
from tests.builders import a_node
from tests.situations import ALICE, a_cluster

pytestmark = pytest.mark.django_db

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: main, image: example/web, resources: {requests: {cpu: "1", memory: 1Gi}}}]}
"""


@pytest.fixture
def cluster(db: Any) -> Cluster:
    return a_cluster(a_node("n1"), a_node("n2"))


@pytest.fixture
def browser(client: Client, settings: Any, cluster: Cluster) -> Client:
    settings.STORAGES = {
        **settings.STORAGES, "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }  # fmt: skip
    client.force_login(User.objects.create_superuser("root", password="x"))
    return client


def agree(browser: Client, cluster: Cluster, **changes: Any) -> Any:
    sent = {
        "name": "web", "cluster": cluster.pk, "manifest": POD, "kind": "nodes", "which": "n1, n2", "policy_name": "",
        "enabled": "on", "reason": "agreed", **changes,
    }  # fmt: skip
    return browser.post(reverse("admin:policies_goldenplacement_add"), sent)


def test_golden_placement_is_created_and_evaluated(browser: Client, cluster: Cluster) -> None:
    assert agree(browser, cluster).status_code == 302
    row = GoldenPlacement.objects.get()
    assert (row.name, row.expectation.nodes, row.state) == ("web", ("n1", "n2"), "kept")
    entry = AuditEntry.objects.get(action="golden.add")
    assert (entry.actor, entry.reason) == ("root", "agreed")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reason": ""}, "This field is required"),
        ({"manifest": "kind: ["}, "manifest"),
        ({"name": "Not A Name"}, "is not a valid name"),
        ({"kind": "isa", "which": "rv64qq"}, "rv64qq"),
        ({"kind": "verdict", "which": "placed"}, "placed"),
    ],
)
def test_action_error_is_shown_at_the_form(
    browser: Client, cluster: Cluster, changes: dict[str, str], said: str
) -> None:
    answer = agree(browser, cluster, **changes)
    assert answer.status_code == 200
    assert said in answer.content.decode()
    assert not GoldenPlacement.objects.exists()
    assert not AuditEntry.objects.filter(action="golden.add").exists()


def test_add_form_does_not_replace_a_golden_placement(browser: Client, cluster: Cluster) -> None:
    agree(browser, cluster)
    answer = agree(browser, cluster, which="n2", reason="another")
    assert answer.status_code == 200
    assert "golden placement web already exists" in answer.content.decode()
    assert GoldenPlacement.objects.get().expectation.nodes == ("n1", "n2")


def test_golden_placement_is_changed_and_removed_with_a_reason(browser: Client, cluster: Cluster) -> None:
    agree(browser, cluster)
    row = GoldenPlacement.objects.get()
    change = reverse("admin:policies_goldenplacement_change", args=[row.pk])
    shown = browser.get(change).content.decode()
    assert 'value="n1, n2"' in shown
    sent = {"cluster": cluster.pk, "manifest": POD, "kind": "nodes", "which": "n2", "reason": "moved"}
    assert browser.post(change, sent).status_code == 302
    row.refresh_from_db()
    assert (row.expectation.nodes, row.enabled, row.reason) == (("n2",), False, "moved")

    remove = reverse("admin:policies_goldenplacement_delete", args=[row.pk])
    assert browser.post(remove, {"post": "yes"}).status_code == 200
    assert GoldenPlacement.objects.exists()
    assert browser.post(remove, {"reason": "over"}).status_code == 302
    assert not GoldenPlacement.objects.exists()
    assert AuditEntry.objects.get(action="golden.remove").reason == "over"


def plan(browser: Client, **changes: Any) -> Any:
    sent = {
        "name": "nights", "policy": Policy.objects.get(name="spread").pk, "kind": "once", "version": 1,
        "at_0": (timezone.now() + timedelta(days=1)).date().isoformat(), "at_1": "12:00:00", "late_minutes": 30,
        "metric": "balance", "minutes": 10, "enabled": "on", "reason": "quieter", **changes,
    }  # fmt: skip
    return browser.post(reverse("admin:policies_policyplan_add"), sent)


def test_plan_by_time_is_created(browser: Client) -> None:
    assert plan(browser).status_code == 302
    row = PolicyPlan.objects.get()
    assert row.once is not None
    assert (row.once.version, row.once.late_minutes, row.author) == (1, 30, "root")
    shown = browser.get(reverse("admin:policies_policyplan_change", args=[row.pk]))
    assert shown.status_code == 200


def test_add_form_does_not_replace_a_plan(browser: Client) -> None:
    plan(browser)
    answer = plan(browser, reason="another")
    assert answer.status_code == 200
    assert "plan nights already exists" in answer.content.decode()
    assert PolicyPlan.objects.get().reason == "quieter"


def test_plan_by_metric_is_created(browser: Client, cluster: Cluster) -> None:
    draft = save_draft(PolicyRevision.objects.get(policy__name="spread").spec, actor=ALICE)
    figure = {
        "kind": "condition", "cluster": cluster.pk, "metric": "cpuUtilization", "above": "0.6",
        "above_version": draft.version,
        "below": "0.4", "below_version": 1,
    }  # fmt: skip
    missing = plan(browser, **{**figure, "above": ""})
    assert "This field is required." in missing.content.decode()
    crossed = plan(browser, **{**figure, "below": "0.7"})
    assert "0.7 is not less than the upper bound 0.6" in crossed.content.decode()
    assert plan(browser, **figure).status_code == 302
    condition = PolicyPlan.objects.get().condition
    assert condition is not None
    assert (condition.cluster, condition.metric, condition.above, condition.below) == (
        "fleet",
        "cpuUtilization",
        0.6,
        0.4,
    )


def test_expired_plan_is_rejected_at_the_form(browser: Client) -> None:
    answer = plan(browser, at_0="2020-01-01")
    assert "is in the past" in answer.content.decode()
    assert not PolicyPlan.objects.exists()


@pytest.mark.parametrize(
    "address",
    ["goldenplacement/web/delete/", "policyplan/night/delete/", "policy/mine/change/", "policy/99999999999999999999/"],
)
def test_missing_object_returns_404(browser: Client, address: str) -> None:
    assert browser.get(f"/admin/policies/{address}", follow=True).status_code == 404


def test_version_beyond_the_database_range_is_rejected_at_the_form(browser: Client, cluster: Cluster) -> None:
    policy = Policy.objects.get(name="spread")
    sent = {
        "name": "night", "policy": policy.pk, "kind": "once", "enabled": "on", "reason": "agreed",
        "version": 2**31, "at_0": "2030-01-01", "at_1": "12:00:00",
    }  # fmt: skip
    answer = browser.post(reverse("admin:policies_policyplan_add"), sent)
    assert answer.status_code == 200
    assert "less than or equal to 2147483647" in answer.content.decode()
