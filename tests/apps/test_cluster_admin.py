"""The admin adds, imports and exports clusters; everything else is read-only."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from hetsched.contracts.api.decision import Verdict
from hetsched.inventory.models import Cluster, Node
from hetsched.journal.models import AuditEntry
from hetsched.placement.models import Decision, Pod, Reservation, Workload
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, placed, recorded, refusing, submitted

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("builtins")]

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1"},
    "status": {"allocatable": {"cpu": "4", "memory": "8Gi"}, "conditions": [{"type": "Ready", "status": "True"}]},
}


@pytest.fixture
def browser(client: Client, settings: Any) -> Client:
    settings.STORAGES = {
        **settings.STORAGES, "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }  # fmt: skip
    client.force_login(User.objects.create_superuser("root", password="x"))
    return client


def _file(*objects: dict[str, Any], name: str = "cluster.json") -> SimpleUploadedFile:
    return SimpleUploadedFile(name, json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).encode())


def _add(browser: Client, **values: Any) -> Any:
    return browser.post(
        reverse("admin:inventory_cluster_add"),
        {"name": "lab", "kind": "offline", "policy_name": "hetsched", "reason": "trial", **values},
    )


def test_cluster_is_added_from_files(browser: Client) -> None:
    other = {**NODE, "metadata": {"name": "n2"}}
    answer = _add(browser, documents=[_file(NODE), _file(other, name="more.json")])
    assert answer.status_code == 302
    assert set(Node.objects.values_list("cluster__name", "name")) == {("lab", "n1"), ("lab", "n2")}
    entry = AuditEntry.objects.get(action="cluster.import")
    assert (entry.actor, entry.reason) == ("root", "trial")


def test_cluster_may_be_created_empty(browser: Client) -> None:
    assert _add(browser).status_code == 302
    assert Cluster.objects.get().node_count == 0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": "Not A Name"}, "Lower-case letters, digits"),
        ({"kind": "kubernetes"}, "Select a valid choice"),
        ({"documents": SimpleUploadedFile("c.yaml", b"kind: [")}, "c.yaml"),
        ({"documents": _file({**NODE, "status": {"allocatable": {"cpu": "-1"}}})}, "QuantityNegative"),
    ],
)
def test_invalid_file_is_reported_and_nothing_is_added(browser: Client, values: dict[str, Any], said: str) -> None:
    answer = _add(browser, **values)
    assert answer.status_code == 200
    assert said in answer.content.decode()
    assert not Cluster.objects.exists()


def test_existing_cluster_name_is_rejected(browser: Client) -> None:
    _add(browser, documents=_file(NODE))
    answer = _add(browser, documents=_file({**NODE, "metadata": {"name": "n9"}}))
    assert "ClusterExists" in answer.content.decode()
    assert Node.objects.get().name == "n1"


def test_files_are_imported_into_a_cluster(browser: Client) -> None:
    cluster = a_cluster(a_node("old"))
    url = reverse("admin:inventory_cluster_import", args=[cluster.pk])
    assert browser.post(url, {"documents": _file(NODE)}).status_code == 302
    assert Node.objects.get().name == "n1"


def test_contradictory_import_is_rejected_with_the_reason(browser: Client) -> None:
    cluster = a_cluster(a_node("n0"))
    placed(cluster, "n0", a_pod("p"))
    answer = browser.post(reverse("admin:inventory_cluster_import", args=[cluster.pk]), {"documents": _file(NODE)})
    assert "NodeHoldsPods" in answer.content.decode()


def test_export_is_an_importable_file(browser: Client) -> None:
    cluster = a_cluster(a_node("n1").gpus(1))
    answer = browser.get(reverse("admin:inventory_cluster_export", args=[cluster.pk]))
    assert answer["Content-Disposition"] == 'attachment; filename="fleet.json"'
    assert AuditEntry.objects.get(action="cluster.export").actor == "root"
    again = SimpleUploadedFile("export.json", answer.content)
    assert _add(browser, documents=again).status_code == 302
    assert Node.objects.get(cluster__name="lab").card_count == 1


def test_default_policy_change_requires_a_reason(browser: Client) -> None:
    cluster = a_cluster()
    url = reverse("admin:inventory_cluster_policy", args=[cluster.pk])
    browser.post(url, {"policy_name": "spread", "reason": ""})
    assert Cluster.objects.get().policy_name == "hetsched"
    browser.post(url, {"policy_name": "spread", "reason": "even it out"})
    assert Cluster.objects.get().policy_name == "spread"


def test_every_page_of_these_apps_opens(browser: Client) -> None:
    cluster = a_cluster(a_node("n1").gpus(2).zone("zone-0", "0-3").using(cpu="1"))
    placed(cluster, "n1", a_pod("p").gpu(1))
    submitted(cluster, a_pod("waits"))
    recorded(cluster, refusing(cluster, Verdict.NEVER_FITS))
    opened = 0
    for model in admin.site._registry:
        if model._meta.app_label not in ("inventory", "placement", "policies", "journal"):
            continue
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        assert browser.get(reverse(f"{name}_changelist")).status_code == 200
        row = model._default_manager.first()
        if row is not None:
            assert browser.get(reverse(f"{name}_change", args=[row.pk])).status_code == 200, model
            opened += 1
    assert opened >= 9


@pytest.mark.parametrize("model", [Node, Workload, Pod, Decision, Reservation, AuditEntry])
def test_read_only_fields_cannot_be_changed(browser: Client, model: Any) -> None:
    placed(a_cluster(a_node("n1")), "n1", a_pod("p"))
    row = model.objects.first()
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
    for page in (f"{name}_change", f"{name}_delete"):
        assert browser.post(reverse(page, args=[row.pk]), {"post": "yes"}).status_code == 403
    assert model.objects.filter(pk=row.pk).exists()


def test_viewer_gets_no_form(browser: Client) -> None:
    cluster = a_cluster()
    viewer = User.objects.create_user("viewer", password="x", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_cluster"))
    browser.force_login(viewer)
    page = browser.get(reverse("admin:inventory_cluster_change", args=[cluster.pk]))
    assert "Import files" not in page.content.decode()
    for page, arguments in (("add", []), ("import", [cluster.pk]), ("policy", [cluster.pk])):
        assert browser.get(reverse(f"admin:inventory_cluster_{page}", args=arguments)).status_code == 403
    assert browser.get(reverse("admin:inventory_cluster_export", args=[cluster.pk])).status_code == 200


def test_names_from_files_are_shown_as_text(browser: Client) -> None:
    hostile = a_node("n1").labelled({"note": "<script>alert(1)</script>"})
    a_cluster(hostile)
    page = browser.get(reverse("admin:inventory_node_change", args=[Node.objects.get().pk])).content.decode()
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;" in page
