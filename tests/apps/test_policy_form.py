"""The admin's policy form is built from the plugins' declarations, saves drafts, and rejects invalid weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from hetsched.contracts.objects.policy import PolicySpec
from hetsched.engine import plugins
from hetsched.engine.framework.registry import load_registry
from hetsched.journal.models import AuditEntry
from hetsched.policies.forms import PolicyForm
from hetsched.policies.models import Policy, PolicyRevision
from tests.situations import a_cluster

pytestmark = pytest.mark.django_db

SCRATCH = '''
"""A plugin that is not in the released list."""
from typing import Annotated

import msgspec
import numpy as np

from hetsched.contracts.params import Params
from hetsched.engine.framework.registry import plugin


class ScratchParams(Params, frozen=True):
    depth: Annotated[float, msgspec.Meta(title="Depth", description="How deep.", ge=0, le=5)] = 1.5
    deep: Annotated[bool, msgspec.Meta(title="Deep")] = False
    order: Annotated[tuple[str, ...], msgspec.Meta(title="Order")] = ("a", "b")


@plugin("scratch", summary="Scores everything alike.", params=ScratchParams)
class Scratch:
    def score(self, request, nodes):
        return np.full(nodes.n, 50.0)
'''


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add a plugin file to the plugin path."""
    (tmp_path / "scratch_plugin.py").write_text(SCRATCH)
    monkeypatch.setattr(plugins, "__path__", [*plugins.__path__, str(tmp_path)])
    yield
    sys.modules.pop(f"{plugins.__name__}.scratch_plugin", None)


@pytest.fixture
def browser(client: Client, settings: Any) -> Client:
    settings.STORAGES = {
        **settings.STORAGES, "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }  # fmt: skip
    a_cluster()
    client.force_login(User.objects.create_superuser("root", password="x"))
    return client


def _filled(spec: PolicySpec | None, **changes: Any) -> dict[str, Any]:
    """Return the data that a browser would send for an untouched form, with changes; None leaves a field out."""
    form = PolicyForm(load_registry(), spec=spec)
    sent = {}
    for bound in form:
        value = bound.value()
        if value is None or value is False or value == "":
            continue
        sent[bound.html_name] = "on" if value is True else value
    sent.update(changes)
    return {name: value for name, value in sent.items() if value is not None}


def _spec(name: str) -> PolicySpec:
    return PolicyRevision.objects.get(policy__name=name, state="active").spec


@pytest.mark.parametrize("name", ["hetsched", "default-kube", "first-fit", "best-fit", "spread", "random"])
def test_unchanged_form_equals_the_policy(name: str) -> None:
    a_cluster()
    spec = _spec(name)
    form = PolicyForm(load_registry(), _filled(spec), spec=spec)
    assert form.is_valid(), form.errors
    assert form.spec.plugins == spec.plugins
    assert form.spec.ties == spec.ties


def test_new_plugin_has_a_row_with_bounds_and_defaults(scratch: None, browser: Client) -> None:
    page = browser.get(reverse("admin:policies_policy_add")).content.decode()
    assert "Scores everything alike." in page
    spec = _spec("spread")
    switched_on = {"scratch.on": "on", "scratch.order": 5, "scratch.weight": "2.5", "scratch.param.depth": "3"}
    form = PolicyForm(load_registry(), _filled(spec, **switched_on), spec=spec)
    assert form.is_valid(), form.errors
    first = form.spec.plugins[0]
    assert (first.name, first.weight, first.params) == ("scratch", 2.5, {"depth": 3.0})
    too_deep = PolicyForm(load_registry(), _filled(spec, **switched_on | {"scratch.param.depth": "6"}), spec=spec)
    assert "6 is not between 0 and 5" in str(too_deep.errors["scratch.param.depth"])


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("nan", "nan is not a finite number"),
        ("inf", "inf is not a finite number"),
        ("-1", "-1 is not between 0 and 1000"),
        ("1e308", "1e+308 is not between 0 and 1000"),
        ("1000.1", "1000.1 is not between 0 and 1000"),
        ("heavy", "heavy is not a finite number"),
    ],
)
def test_invalid_weight_is_rejected_at_its_field(typed: str, said: str) -> None:
    a_cluster()
    spec = _spec("spread")
    form = PolicyForm(load_registry(), _filled(spec, **{"least-allocated.weight": typed}), spec=spec)
    assert not form.is_valid()
    assert said in str(form.errors["least-allocated.weight"])


def test_error_outside_the_fields_rejects_the_whole_form() -> None:
    a_cluster()
    form = PolicyForm(load_registry(), {"name": "empty", "ties_by": "name"})
    assert not form.is_valid()
    assert "PolicyEmpty" in str(form.non_field_errors())


def test_saving_creates_an_inactive_draft(browser: Client) -> None:
    policy = Policy.objects.get(name="spread")
    url = reverse("admin:policies_policy_change", args=[policy.pk])
    sent = _filled(_spec("spread"), **{"least-allocated.weight": "7", "note": "try"})
    assert browser.post(url, sent).status_code == 302
    draft = policy.revisions.get(version=2)
    assert (draft.state, draft.author, draft.reason) == ("draft", "root", "try")
    assert next(use.weight for use in draft.spec.plugins if use.name == "least-allocated") == 7.0
    policy.refresh_from_db()
    assert policy.active_version == 1
    assert "try" in browser.get(url).content.decode()


def test_invalid_weight_is_shown_with_its_message(browser: Client) -> None:
    policy = Policy.objects.get(name="spread")
    sent = _filled(_spec("spread"), **{"least-allocated.weight": "-3"})
    answer = browser.post(reverse("admin:policies_policy_change", args=[policy.pk]), sent)
    assert answer.status_code == 200
    assert "-3 is not between 0 and 1000" in answer.content.decode()
    assert policy.revisions.count() == 1


def test_new_policy_is_created_by_the_form(browser: Client) -> None:
    sent = {"name": "mine", "ties_by": "random", "ties_seed": 3, "resource-fit.on": "on", "resource-fit.order": 1}
    assert browser.post(reverse("admin:policies_policy_add"), sent).status_code == 302
    spec = PolicyRevision.objects.get(policy__name="mine").spec
    assert ([use.name for use in spec.plugins], spec.ties.by, spec.ties.seed) == (["resource-fit"], "random", 3)


def test_activation_shows_the_change_and_needs_a_reason(browser: Client) -> None:
    policy = Policy.objects.get(name="spread")
    change = reverse("admin:policies_policy_change", args=[policy.pk])
    browser.post(change, _filled(_spec("spread"), **{"least-allocated.weight": "7"}))
    url = reverse("admin:policies_policy_activate", args=[policy.pk, 2])
    assert "&quot;weight&quot;: 7" in browser.get(url).content.decode()
    browser.post(url, {"reason": "", "seen": "1"})
    assert Policy.objects.get(pk=policy.pk).active_version == 1
    browser.post(url, {"reason": "even it out", "seen": "1"})
    assert Policy.objects.get(pk=policy.pk).active_version == 2
    entry = AuditEntry.objects.filter(action="policy.activate").first()
    assert entry is not None
    assert (entry.actor, entry.role, entry.reason) == ("root", "superuser", "even it out")
    browser.post(reverse("admin:policies_policy_rollback", args=[policy.pk]), {"reason": "worse", "seen": "2"})
    assert Policy.objects.get(pk=policy.pk).active_version == 1


def test_rollback_and_roll_forward_are_named(browser: Client) -> None:
    policy = Policy.objects.get(name="spread")
    change = reverse("admin:policies_policy_change", args=[policy.pk])
    browser.post(change, _filled(_spec("spread"), **{"least-allocated.weight": "7"}))
    rollback = reverse("admin:policies_policy_rollback", args=[policy.pk])
    second = reverse("admin:policies_policy_activate", args=[policy.pk, 2])
    assert "Activate version 2 of spread" in browser.get(second).content.decode()
    browser.post(second, {"reason": "try", "seen": "1"})
    assert "Roll back to v1…" in browser.get(change).content.decode()
    assert "Roll spread back to version 1" in browser.get(rollback).content.decode()
    browser.post(rollback, {"reason": "worse", "seen": "2"})
    page = browser.get(change).content.decode()
    assert ("Roll forward to v2…" in page, "Roll forward…</a>" in page, "Roll back" in page) == (True, True, False)
    for address in (rollback, second):
        assert "Roll spread forward to version 2" in browser.get(address).content.decode()


def test_activation_over_another_change_is_rejected(browser: Client) -> None:
    policy = Policy.objects.get(name="spread")
    browser.post(
        reverse("admin:policies_policy_change", args=[policy.pk]),
        _filled(_spec("spread"), **{"least-allocated.weight": "7"}),
    )
    url = reverse("admin:policies_policy_activate", args=[policy.pk, 2])
    answer = browser.post(url, {"reason": "even it out", "seen": "0"}, follow=True)
    assert "PolicyChanged" in answer.content.decode()
    assert Policy.objects.get(pk=policy.pk).active_version == 1


def test_viewer_sees_the_form_and_cannot_save(browser: Client) -> None:
    from django.contrib.auth.models import Permission

    viewer = User.objects.create_user("viewer", password="x", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_policy"))
    browser.force_login(viewer)
    policy = Policy.objects.get(name="spread")
    url = reverse("admin:policies_policy_change", args=[policy.pk])
    assert "Save as draft" not in browser.get(url).content.decode()
    assert browser.post(url, _filled(_spec("spread"))).status_code == 403
    activation = reverse("admin:policies_policy_activate", args=[policy.pk, 1])
    assert browser.post(activation, {"reason": "r"}).status_code == 403


def test_namespace_rule_allows_existing_policies_only(browser: Client) -> None:
    from hetsched.inventory.models import Cluster
    from hetsched.policies.models import NamespaceRule

    url = reverse("admin:policies_namespacerule_add")
    sent = {"cluster": Cluster.objects.get().pk, "namespace": "team", "default_policy": "spread"}
    refused = browser.post(url, {**sent, "allowed_policies": ["random"]})
    assert "not one of the allowed" in refused.content.decode()
    browser.post(url, {**sent, "allowed_policies": ["spread", "random"]})
    rule = NamespaceRule.objects.get()
    assert (rule.default_policy, rule.allowed_policies) == ("spread", ["spread", "random"])
    assert AuditEntry.objects.get(action="namespace.policy").actor == "root"
    page = browser.get(reverse("admin:policies_namespacerule_change", args=[rule.pk]))
    assert page.status_code == 200
    browser.post(reverse("admin:policies_namespacerule_delete", args=[rule.pk]), {"post": "yes"})
    assert not NamespaceRule.objects.exists()
