"""Submitters see their own webhooks and deliveries, with the buttons that act on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from hetsched.inventory.models import Cluster
from hetsched.placement.actions.webhooks import WebhookSettings, add_webhook, try_webhook
from hetsched.placement.models import Delivery, Webhook
from tests.builders import a_pod
from tests.pages.test_node_agent_reports import words
from tests.situations import ALICE, placing, recorded, submitted


@pytest.fixture(autouse=True)
def allowed(settings: Any) -> None:
    settings.SECRET_KEY_GIVEN = True
    settings.HETSCHED_CALLBACK_HOSTS = ["ci.example"]


@pytest.fixture
def submitter(browsing: Callable[..., Client]) -> Client:
    return browsing("submitter")


@pytest.fixture
def hook(submitter: Client) -> Webhook:
    owner = f"user:{User.objects.latest('id').pk}"
    wanted = WebhookSettings("pipeline <b>", "https://ci.example/done", states=("failed",))
    return add_webhook(wanted, owner=owner, actor=ALICE, reason="x")[0]


def test_viewer_gets_a_contact_instead_of_a_form(viewer: Client) -> None:
    answer = viewer.get("/webhooks/")
    assert answer.status_code == 403
    assert "Webhooks need the role submitter" in answer.content.decode()
    assert 'href="/webhooks/"' not in viewer.get("/nodes/").content.decode()


def test_page_without_allowed_hosts_has_a_reason(submitter: Client, settings: Any) -> None:
    settings.HETSCHED_CALLBACK_HOSTS = []
    shown = words(submitter, "/webhooks/")
    assert "HETSCHED_CALLBACK_HOSTS" in shown
    assert "Add a webhook" not in shown


def test_webhook_is_shown_with_its_events(submitter: Client, hook: Webhook) -> None:
    shown = words(submitter, "/webhooks/")
    assert "pipeline <b> https://ci.example/done failed all clusters, all namespaces enabled" in shown
    page = submitter.get("/webhooks/").content.decode()
    for part in ("test/", "secret/", ""):
        assert f'data-act="/api/v1/webhooks/{hook.pk}/{part}"' in page
    assert "whsec_" not in page


def test_paused_webhook_has_a_reason(submitter: Client, hook: Webhook) -> None:
    Webhook.objects.update(enabled=False, paused_because="the endpoint responds with 410 Gone")
    shown = words(submitter, "/webhooks/")
    assert "paused the endpoint responds with 410 Gone" in shown
    assert "Resume" in shown


def test_delivery_shows_its_attempts_and_body(submitter: Client, hook: Webhook) -> None:
    row = try_webhook(hook, actor=ALICE)
    row.log.create(at=row.created_at, took_millis=12, code="HostSlow", message="ci.example did not respond within 5 s")
    assert "webhook.test – ci.example pipeline <b> due 0" in words(submitter, "/webhooks/")
    shown = words(submitter, f"/deliveries/{row.pk}/")
    assert "HostSlow 12 ms ci.example did not respond within 5 s" in shown
    assert '"type": "webhook.test"' in shown
    assert "Deliver again" not in shown
    Delivery.objects.update(state=Delivery.DEAD)
    page = submitter.get(f"/deliveries/{row.pk}/").content.decode()
    assert f'data-act="/api/v1/deliveries/{row.pk}/redeliver/"' in page


def test_webhook_of_another_owner_is_not_found(hook: Webhook, browsing: Callable[..., Client]) -> None:
    row = try_webhook(hook, actor=ALICE)
    stranger = browsing("submitter")
    assert "pipeline" not in words(stranger, "/webhooks/")
    assert stranger.get(f"/deliveries/{row.pk}/").status_code == 404
    assert "pipeline" in words(browsing("operator"), "/webhooks/")


def test_workload_shows_its_deliveries(cluster: Cluster, browsing: Callable[..., Client], viewer: Client) -> None:
    workload = submitted(cluster, a_pod("p"), callback_url="https://ci.example/done")
    recorded(cluster, placing(cluster, "n1"))
    address = f"/workloads/{workload.pk}/"
    assert "workload.placed ci.example due" in words(browsing("operator"), address)
    assert "Webhook deliveries" not in words(viewer, address)
    assert "Webhook deliveries" not in words(browsing("submitter"), address)
