"""Every change of active policies uses `save_draft` and `activate`: validated, checked, with a reason, audited.

Verified twice: no other module writes these columns, and each entry point for users and programs is called.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from hetsched.contracts.api.golden import Expectation
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.observed import ObservedPolicy
from hetsched.contracts.objects.policy import PluginUse, PolicySpec, Ties
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.journal.models import AuditEntry
from hetsched.placement.actions import import_cluster
from hetsched.policies.actions import ensure_builtins, save_draft
from hetsched.policies.cluster_policies import apply_policy_objects
from hetsched.policies.goldens import save_golden
from hetsched.policies.models import Policy, PolicyObject, PolicyRevision
from hetsched.policies.plan_contracts import Once
from hetsched.policies.plans import evaluate_plans, save_plan
from tests.builders import a_node, a_pod

from .conftest import POD, Api

# -- no other writers ------------------------------------------------------------------------------------------------

DOOR = "hetsched/policies/actions.py"
WRITES = {
    "create", "bulk_create", "get_or_create", "update_or_create", "update", "bulk_update", "delete", "add", "set",
    "acreate", "aupdate", "adelete", "abulk_create", "aget_or_create", "aupdate_or_create",
}  # fmt: skip
PRIVATE = {"_add_revision", "_set_active"}
SQL = re.compile(r"\b(update|insert\s+into|delete\s+from)\s+policies_policy", re.IGNORECASE)
# Words of which a module that writes versions contains at least one; other modules are not parsed.
WORDS = re.compile("PolicyRevision|revisions|active_version|policies_policy|_add_revision|_set_active", re.IGNORECASE)


def sources() -> Iterator[Path]:
    for package in ("hetsched", "web", "workers"):
        for path in sorted((settings.BASE_DIR / package).rglob("*.py")):
            if "migrations" not in path.parts:
                yield path


def writes_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the places that write versions, or that select the active one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            names = names_in(node.func)
            if names[-1:] == ["PolicyRevision"]:
                yield node.lineno, "makes a PolicyRevision"
            if names and names[-1] in WRITES and ("PolicyRevision" in names or "revisions" in names[1:]):
                yield node.lineno, f"writes versions by {names[-1]}"
            if names and names[-1] in {*WRITES, "Policy"} and any(k.arg == "active_version" for k in node.keywords):
                yield node.lineno, "writes active_version"
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            if any(isinstance(part, ast.Attribute) and part.attr == "active_version" for part in parts):
                yield node.lineno, "assigns active_version"
        if isinstance(node, ast.Attribute | ast.Name | ast.alias):
            name = getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "name", "")
            if name in PRIVATE:
                yield node.lineno, f"reaches for {name}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.search(node.value):
            yield node.lineno, "writes by SQL"


def names_in(node: ast.AST) -> list[str]:
    """Return the names of a chain such as `PolicyRevision.objects.filter(…).update`, first to last."""
    if isinstance(node, ast.Attribute):
        return [*names_in(node.value), node.attr]
    if isinstance(node, ast.Call):
        return names_in(node.func)
    return [node.id] if isinstance(node, ast.Name) else []


def test_no_other_module_writes_or_activates_versions() -> None:
    found = [
        f"{path.relative_to(settings.BASE_DIR)}:{line} {what}"
        for path in sources()
        if str(path.relative_to(settings.BASE_DIR)) != DOOR and WORDS.search(text := path.read_text())
        for line, what in writes_of(ast.parse(text))
    ]
    assert found == []


def test_search_finds_the_write_path_itself() -> None:
    found = {what for _, what in writes_of(ast.parse((settings.BASE_DIR / DOOR).read_text()))}
    assert {"writes versions by create", "writes versions by update", "assigns active_version"} <= found


@pytest.mark.parametrize(
    "line",
    [
        "PolicyRevision(policy=p).save()",
        "models.PolicyRevision.objects.filter(pk=1).update(state='active')",
        "policy.revisions.filter(state='active').delete()",
        "policy.active_version = 3",
        "a, policy.active_version = 1, 2",
        "Policy.objects.filter(name=name).update(active_version=3)",
        "from hetsched.policies.actions import _set_active",
        "cursor.execute('UPDATE policies_policy SET active_version = 2')",
    ],
)
def test_search_finds_a_second_write_path(line: str) -> None:
    assert list(writes_of(ast.parse(line)))
    assert WORDS.search(line)


# -- entry points ----------------------------------------------------------------------------------------------------

REASON = "because the test says so"


def content(name: str, node: str) -> PolicySpec:
    """Return a policy with random ties that selects this one of two equal nodes for the pod default/web."""
    for seed in range(200):
        spec = PolicySpec(name, (PluginUse("resource-fit"),), Ties("random", seed))
        state = ClusterState([a_node("n1").build(), a_node("n2").build()])
        if Scheduler(state, compile_policy(spec, load_registry())).schedule(a_pod("web").build()).node == node:
            return spec
    raise AssertionError("no seed selects it")


def agree(cluster: Cluster) -> None:
    """Create a golden placement of the pod `web` on n1 for any policy."""
    there = Expectation(nodes=("n1",))
    save_golden("web-on-n1", cluster=cluster, manifest=POD, expectation=there, actor=SYSTEM, reason="agreed")


@pytest.fixture
def guarded(cluster: Cluster) -> Cluster:
    agree(cluster)
    return cluster


def active(name: str) -> int:
    return int(Policy.objects.get(name=name).active_version)


def audited(name: str, action: str) -> AuditEntry:
    return AuditEntry.objects.filter(action=action, object_name=name).latest("id")


def by_rest(api: Callable[..., Api], person: Any, spec: PolicySpec) -> None:
    admin = api("policy-admin")
    body = {"name": spec.name, "plugins": [{"name": "resource-fit"}], "ties": {"by": "random", "seed": spec.ties.seed}}
    version = admin("POST", "policies/", body, status=201).json()["version"]
    tag = admin.tag(f"policies/{spec.name}/")
    admin("POST", f"policies/{spec.name}/activate/", {"version": version, "reason": REASON}, if_match=tag)


def by_admin(api: Callable[..., Api], person: Any, spec: PolicySpec) -> None:
    client = Client()
    client.force_login(person("root", superuser=True))
    form = {
        "name": spec.name, "ties_by": "random", "ties_seed": spec.ties.seed, "resource-fit.on": "on", "note": "a draft",
    }  # fmt: skip
    known = Policy.objects.filter(name=spec.name).first()
    add, change = reverse("admin:policies_policy_add"), "admin:policies_policy_change"
    client.post(reverse(change, args=[known.pk]) if known else add, form)
    revision = PolicyRevision.objects.filter(policy__name=spec.name).latest("version")
    address = reverse("admin:policies_policy_activate", args=[revision.policy_id, revision.version])
    client.post(address, {"reason": REASON})


def by_object(api: Callable[..., Api], person: Any, spec: PolicySpec) -> None:
    west = Cluster.objects.filter(name="west").first()
    if west is None:
        west = create_cluster(name="west", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
        Connection.objects.create(cluster=west, follower_epoch=1)
    generation = 1 + (PolicyObject.objects.filter(name=spec.name).values_list("generation", flat=True).first() or 0)
    apply_policy_objects(west.pk, [ObservedPolicy(spec.name, "uid", generation, spec)], epoch=1)


def by_plan(api: Callable[..., Api], person: Any, spec: PolicySpec) -> None:
    version = save_draft(spec, actor=SYSTEM).version
    now = timezone.now()
    save_plan(
        f"plan-{version}", policy_name=spec.name, once=Once(version, now + timedelta(minutes=1)), actor=SYSTEM,
        reason=REASON,
    )  # fmt: skip
    evaluate_plans(now + timedelta(minutes=2))


def by_import(api: Callable[..., Api], person: Any, spec: PolicySpec) -> None:
    import_cluster(
        ClusterContent(nodes=(a_node("m1").build(),), policies=(spec,)), name=f"copy-of-{spec.name}", actor=SYSTEM
    )


def by_release(api: Callable[..., Api], person: Any, spec: PolicySpec) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(BUILTIN, spec.name, spec)
        ensure_builtins()


DOORS = [by_rest, by_admin, by_object, by_plan, by_import, by_release]


@pytest.mark.parametrize("door", DOORS)
def test_policy_that_breaks_a_golden_placement_stays_a_draft(
    api: Callable[..., Api], person: Any, guarded: Cluster, door: Callable[..., None]
) -> None:
    door(api, person, content("mine", "n2"))
    assert active("mine") == 0
    assert list(PolicyRevision.objects.filter(policy__name="mine").values_list("state", flat=True)) == ["draft"]
    assert audited("mine", "policy.draft").details == {"version": 1}
    if door is by_object:
        problem = PolicyObject.objects.get(name="mine").problem
        assert problem is not None
        assert (problem.code, "web-on-n1" in problem.message) == ("GoldenPlacementBroken", True)
        door(api, person, content("mine", "n2"))  # it repeats the report
        assert PolicyRevision.objects.filter(policy__name="mine").count() == 1
    elif door not in (by_rest, by_admin):  # there is no response that could contain the rejection
        assert audited("mine", "policy.refused").details["code"] == "GoldenPlacementBroken"


@pytest.mark.parametrize("door", DOORS)
def test_valid_policy_is_activated_with_an_audit_entry(
    api: Callable[..., Api], person: Any, guarded: Cluster, door: Callable[..., None]
) -> None:
    door(api, person, content("mine", "n1"))
    assert active("mine") == 1
    entry = audited("mine", "policy.activate")
    assert entry.reason
    assert entry.details == {"before": 0, "after": 1, "goldens": {"web-on-n1": "kept"}}
    if door in (by_rest, by_admin):
        assert entry.reason == REASON


def test_rollback_checks_golden_placements(api: Callable[..., Api], cluster: Cluster) -> None:
    admin = api("policy-admin")
    for node in ("n2", "n1"):
        by_rest(api, None, content("mine", node))
    agree(cluster)
    back = admin("POST", "policies/mine/rollback/", {"reason": REASON}, if_match=admin.tag("policies/mine/"))
    assert (back.status_code, back.json()["code"], active("mine")) == (409, "GoldenPlacementBroken", 2)
