"""Every change in the admin is in the audit trail with its user; everything else is read-only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db import models
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from hetsched.access.models import Token
from hetsched.access.tokens import create_token
from hetsched.inventory.models import Cluster
from hetsched.journal.admin import AuditedAdmin
from hetsched.journal.models import AuditEntry
from hetsched.policies.models import GoldenPlacement, NamespaceRule, Policy, PolicyPlan
from tests.builders import a_node
from tests.situations import a_cluster

pytestmark = pytest.mark.django_db

PASSWORD = "a long enough password"
POD = "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: main, image: example/web}]}}"


@pytest.fixture
def root() -> User:
    return User.objects.create_superuser("root", password="x")


@pytest.fixture
def browser(client: Client, settings: Any, root: User) -> Client:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.STORAGES = {
        **settings.STORAGES, "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }  # fmt: skip
    client.force_login(root)
    return client


@pytest.fixture
def cluster(db: Any) -> Cluster:
    return a_cluster(a_node("n1"))


def ada(**more: Any) -> User:
    made: User = User.objects.create_user("ada", password=PASSWORD, **more)
    return made


def account(user: User, **changes: Any) -> dict[str, Any]:
    joined = user.date_joined
    return {
        "username": user.username, "is_active": "on", "date_joined_0": f"{joined:%Y-%m-%d}",
        "date_joined_1": f"{joined:%H:%M:%S}", **changes,
    }  # fmt: skip


def url(model: type[models.Model], page: str, *args: Any) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


def add_account() -> tuple[str, dict[str, Any]]:
    sent = {"username": "ada", "usable_password": "true", "password1": PASSWORD, "password2": PASSWORD}
    return url(User, "add"), sent


def change_account() -> tuple[str, dict[str, Any]]:
    user = ada()
    group = Group.objects.get_or_create(name="operator")[0]
    return url(User, "change", user.pk), account(user, groups=[group.pk], email="ada@example.com")


def set_password() -> tuple[str, dict[str, Any]]:
    sent = {"usable_password": "true", "password1": PASSWORD + "2", "password2": PASSWORD + "2"}
    return reverse("admin:auth_user_password_change", args=[ada().pk]), sent


def delete_account() -> tuple[str, dict[str, Any]]:
    user = ada()
    create_token(role="viewer", name="hers", user=user)
    return url(User, "delete", user.pk), {"post": "yes"}


def delete_accounts() -> tuple[str, dict[str, Any]]:
    return url(User, "changelist"), {"action": "delete_selected", "_selected_action": [ada().pk], "post": "yes"}


def add_group() -> tuple[str, dict[str, Any]]:
    return url(Group, "add"), {"name": "night shift"}


def change_group() -> tuple[str, dict[str, Any]]:
    return url(Group, "change", Group.objects.create(name="night shift").pk), {"name": "day shift"}


def delete_group() -> tuple[str, dict[str, Any]]:
    return url(Group, "delete", Group.objects.create(name="night shift").pk), {"post": "yes"}


def add_token() -> tuple[str, dict[str, Any]]:
    return url(Token, "add"), {"name": "nightly", "role": "viewer", "namespaces": "[]", "quota": "{}"}


def delete_token() -> tuple[str, dict[str, Any]]:
    return url(Token, "delete", create_token(role="viewer", name="nightly")[0].pk), {"post": "yes"}


def delete_tokens() -> tuple[str, dict[str, Any]]:
    chosen = [create_token(role="viewer", name="nightly")[0].pk]
    return url(Token, "changelist"), {"action": "delete_selected", "_selected_action": chosen, "post": "yes"}


def add_cluster() -> tuple[str, dict[str, Any]]:
    return url(Cluster, "add"), {"name": "lab", "kind": "offline", "policy_name": "hetsched", "reason": "trial"}


def change_cluster() -> tuple[str, dict[str, Any]]:
    page = reverse("admin:inventory_cluster_policy", args=[Cluster.objects.get().pk])
    return page, {"policy_name": "spread", "reason": "even it out"}


def rule() -> dict[str, Any]:
    chosen = {"default_policy": "spread", "allowed_policies": ["spread"]}
    return {"cluster": Cluster.objects.get().pk, "namespace": "team-a", **chosen}


def add_rule() -> tuple[str, dict[str, Any]]:
    return url(NamespaceRule, "add"), rule()


def made_rule() -> NamespaceRule:
    return NamespaceRule.objects.create(cluster=Cluster.objects.get(), namespace="team-a", default_policy="hetsched")


def change_rule() -> tuple[str, dict[str, Any]]:
    return url(NamespaceRule, "change", made_rule().pk), rule()


def delete_rule() -> tuple[str, dict[str, Any]]:
    return url(NamespaceRule, "delete", made_rule().pk), {"post": "yes"}


def delete_rules() -> tuple[str, dict[str, Any]]:
    chosen = [made_rule().pk]
    return url(NamespaceRule, "changelist"), {"action": "delete_selected", "_selected_action": chosen, "post": "yes"}


def add_policy() -> tuple[str, dict[str, Any]]:
    return url(Policy, "add"), {
        "name": "mine", "ties_by": "random", "ties_seed": 3, "resource-fit.on": "on", "resource-fit.order": 1,
    }  # fmt: skip


def add_golden() -> tuple[str, dict[str, Any]]:
    return url(GoldenPlacement, "add"), {
        "name": "web", "cluster": Cluster.objects.get().pk, "manifest": POD, "kind": "nodes", "which": "n1",
        "policy_name": "", "enabled": "on", "reason": "agreed",
    }  # fmt: skip


def add_plan() -> tuple[str, dict[str, Any]]:
    return url(PolicyPlan, "add"), {
        "name": "nights", "policy": Policy.objects.get(name="spread").pk, "kind": "once", "version": 1,
        "at_0": (timezone.now() + timedelta(days=1)).date().isoformat(), "at_1": "12:00:00",
        "late_minutes": 30, "metric": "balance", "minutes": 10,
        "enabled": "on", "reason": "quieter",
    }  # fmt: skip


WRITES: dict[Callable[[], tuple[str, dict[str, Any]]], tuple[type[models.Model], set[str]]] = {
    add_account: (User, {"account.create"}),
    change_account: (User, {"account.change"}),
    set_password: (User, {"account.secret"}),
    delete_account: (User, {"account.delete", "token.revoke"}),
    delete_accounts: (User, {"account.delete"}),
    add_group: (Group, {"group.create"}),
    change_group: (Group, {"group.change"}),
    delete_group: (Group, {"group.delete"}),
    add_token: (Token, {"token.create"}),
    delete_token: (Token, {"token.revoke"}),
    delete_tokens: (Token, {"token.revoke"}),
    add_cluster: (Cluster, {"cluster.create"}),
    change_cluster: (Cluster, {"cluster.policy"}),
    add_rule: (NamespaceRule, {"namespace.policy"}),
    change_rule: (NamespaceRule, {"namespace.policy"}),
    delete_rule: (NamespaceRule, {"namespace.policy"}),
    delete_rules: (NamespaceRule, {"namespace.policy"}),
    add_policy: (Policy, {"policy.draft"}),
    add_golden: (GoldenPlacement, {"golden.add"}),
    add_plan: (PolicyPlan, {"plan.add"}),
}


@pytest.mark.parametrize("prepare", WRITES, ids=[prepare.__name__ for prepare in WRITES])
def test_user_of_a_change_is_in_the_trail(browser: Client, cluster: Cluster, prepare: Any) -> None:
    page, sent = prepare()
    before = AuditEntry.objects.latest("id").pk
    answer = browser.post(page, sent)
    assert answer.status_code == 302, answer.content.decode()[:20_000]
    entries = AuditEntry.objects.filter(pk__gt=before)
    assert {entry.action for entry in entries} == WRITES[prepare][1]
    assert {(entry.actor, entry.role) for entry in entries} == {("root", "superuser")}
    assert PASSWORD not in str([entry.details for entry in entries])


def test_every_page_that_is_not_only_read_is_tried(root: User) -> None:
    request = RequestFactory().get("/admin/")
    request.user = root
    written = {
        model
        for model, page in admin.site._registry.items()
        if page.has_add_permission(request)
        or page.has_change_permission(request)
        or page.has_delete_permission(request)
    }
    assert written == {model for model, _ in WRITES.values()}
    edited = {model for model in written if isinstance(admin.site._registry[model], AuditedAdmin)}
    assert edited == {User, Group}  # actions of the product write all others


def test_previous_and_new_values_are_in_the_trail(browser: Client) -> None:
    page, sent = change_account()
    browser.post(page, sent)
    entry = AuditEntry.objects.get(action="account.change")
    assert (entry.object_kind, entry.object_name) == ("account", "ada")
    assert entry.details == {
        "before": {"email": "", "groups": []}, "after": {"email": "ada@example.com", "groups": ["operator"]},
    }  # fmt: skip


def test_failing_audit_trail_prevents_the_change(browser: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_entry: Any) -> None:
        raise RuntimeError("the trail takes nothing")

    monkeypatch.setattr("hetsched.journal.admin.record", refuse)
    for prepare in (change_account, set_password, delete_accounts):
        User.objects.filter(username="ada").delete()
        page, sent = prepare()
        with pytest.raises(RuntimeError, match="takes nothing"):
            browser.post(page, sent)
        user = User.objects.get(username="ada")
        assert (user.email, user.check_password(PASSWORD)) == ("", True)
