"""The banner over all pages of a live cluster: since when and why it is stale, and its shadow mode."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from hetsched.inventory.models import Cluster, ClusterKind, Connection, Sync
from hetsched.scheduling.leases import following
from tests.builders import a_node
from tests.situations import a_cluster

PAGES = ("/", "/nodes/", "/nodes/n1/", "/workloads/", "/decisions/", "/what-if/", "/policies/", "/shadow/")


@pytest.fixture
def live(db: None) -> Cluster:
    """Return a live cluster whose last update is three minutes old."""
    cluster = a_cluster(a_node("n1"), name="live")
    Cluster.objects.update(kind=ClusterKind.KUBERNETES)
    Connection.objects.create(cluster=cluster)
    lease = following.take(cluster.pk, "test")
    assert lease is not None
    at = timezone.now() - timedelta(minutes=3)
    facts = {"epoch": lease.epoch, "synced_at": at, "alive_at": at, "failures": 4, "reason": "connection <refused>"}
    Sync.objects.create(cluster=cluster, resource="nodes", **facts)
    return cluster


@pytest.mark.parametrize("page", PAGES)
def test_every_page_reports_a_stale_cluster(page: str, live: Cluster, viewer: Client) -> None:
    text = viewer.get(page).content.decode()
    assert 'id="stale" class="stale" role="alert" data-topic="watch:live">' in text
    assert "connection &lt;refused&gt;" in text
    assert "hetsched does not schedule pods for live until the connection is restored" in text
    assert "js/stale.js" in text


def test_current_cluster_hides_the_banner(live: Cluster, viewer: Client) -> None:
    Sync.objects.update(alive_at=timezone.now(), failures=0, reason="")
    assert 'data-topic="watch:live" hidden>' in viewer.get("/workloads/").content.decode()


def test_cluster_without_any_report_has_no_time(live: Cluster, viewer: Client) -> None:
    Sync.objects.all().delete()
    text = viewer.get("/nodes/").content.decode()
    assert "data-facts hidden" in text
    assert 'datetime=""' not in text


def test_imported_cluster_has_no_stale_banner(cluster: Cluster, viewer: Client) -> None:
    assert 'id="stale"' not in viewer.get("/workloads/").content.decode()


def test_shadow_mode_is_shown_on_every_page(live: Cluster, viewer: Client) -> None:
    Connection.objects.update(shadow_of="default-scheduler")
    text = viewer.get("/nodes/").content.decode()
    effect = "hetsched does not schedule pods or write to the cluster."
    assert f"Shadow mode (active scheduler: default-scheduler): {effect}" in text
    assert '<a href="/shadow/">' in text
