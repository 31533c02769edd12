"""The clusters page lists problems first, each with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hetsched.inventory.actions import cordon, create_cluster
from hetsched.inventory.models import Cluster, Collector, Connection, Sync
from hetsched.journal import counters, metric_names
from hetsched.journal.audit import SYSTEM
from hetsched.placement.queries.invariants import CHECKED
from tests.pages.test_node_agent_reports import words
from web.api.monitoring import health

from .reading import main_of


@pytest.fixture(autouse=True)
def all_parts_work(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(health._CHECKS, "broker", lambda: health.Component(True, "memory"))
    counters.set_values(metric_names.CANARY, {("schedule",): 1, ("io",): 1})
    counters.set_values(metric_names.VIOLATIONS, {(name,): 0 for name in CHECKED})


@pytest.fixture
def live(cluster: Cluster) -> Connection:
    found = create_cluster(name="prod", kind="kubernetes", actor=SYSTEM)
    return Connection.objects.create(
        cluster=found, server="https://10.0.0.1:6443", sealed_kubeconfig="sealed-and-secret"
    )


def test_healthy_clusters_are_reported(viewer: Client, cluster: Cluster) -> None:
    shown = words(viewer, "/clusters/")
    assert "No problems" in shown
    assert f"Invariants works all {len(CHECKED)} invariants hold" in shown
    assert "Nodes ready 2 of 2" in shown
    assert "Migrations works all migrations are applied" in shown
    assert "Scheduling works no pod is waiting for its first attempt" in shown


def test_workers_of_this_server_lead_offline_clusters(viewer: Client, live: Connection) -> None:
    shown = words(viewer, "/clusters/")
    # `fleet` came from a file; `prod` is a live cluster whose lease no scheduler has acquired.
    assert shown.count("Scheduling leader the workers of this server") == 1
    assert shown.count("Scheduling leader none yet") == 1


def test_page_polls_because_no_topic_reports_a_stopped_component(viewer: Client, cluster: Cluster) -> None:
    assert 'data-every="30"' in viewer.get("/clusters/").content.decode()
    assert "data-every" not in viewer.get("/nodes/").content.decode()


def test_problems_are_first_with_a_remedy(viewer: Client, cluster: Cluster) -> None:
    cordon(cluster, "n1", actor=SYSTEM, reason="fan")
    counters.set_values(metric_names.VIOLATIONS, {("I3",): 2})
    shown = words(viewer, "/clusters/")
    first, second = (
        shown.index("Invariants: violated: I3: 2"),
        shown.index("1 node of fleet is not ready or not schedulable"),
    )
    assert first < second
    assert "Back up the database" in shown
    assert "q=state%21%3Dready" in viewer.get("/clusters/").content.decode()


def test_live_cluster_without_an_informer_shows_a_remedy(viewer: Client, live: Connection) -> None:
    shown = words(viewer, "/clusters/")
    assert (
        "The cached state of prod is too old for scheduling: no process watches the cluster Run `hetsched scheduler`"
        in shown
    )
    assert "API server 10.0.0.1:6443" in shown
    assert "sealed-and-secret" not in viewer.get("/clusters/").content.decode()


def test_each_watched_kind_shows_age_and_failures(viewer: Client, live: Connection) -> None:
    then = timezone.now() - timedelta(minutes=9)
    Sync.objects.create(
        cluster=live.cluster, resource="pods", epoch=1, alive_at=then, synced_at=then, objects_count=7, failures=3,
        reason="410 Gone",
    )  # fmt: skip
    shown = words(viewer, "/clusters/")
    assert "pods 7" in shown
    assert "3 410 Gone" in shown


def test_unreachable_source_is_shown(viewer: Client, cluster: Cluster) -> None:
    Collector.objects.create(
        cluster=cluster, name="prom", kind="prometheus-load", load=True, failures=4, failure="connection refused",
        failure_code="SourceUnreachable", sealed_token="sealed-and-secret",
    )  # fmt: skip
    shown = words(viewer, "/clusters/")
    assert "The metric source prom of fleet does not respond: connection refused" in shown
    assert "not in use" in shown
    assert "sealed-and-secret" not in viewer.get("/clusters/").content.decode()


def test_only_operators_find_actions_on_a_cluster(
    viewer: Client, browsing: Callable[..., Client], live: Connection
) -> None:
    looking = main_of(viewer.get("/clusters/").content.decode())
    assert ("data-act=" in looking, "data-test=" in looking, "/export/" in looking) == (False, False, False)
    acting = browsing("operator").get("/clusters/").content.decode()
    for address in ("/api/v1/clusters/", "/api/v1/clusters/fleet/import/", "/api/v1/clusters/prod/connection/"):
        assert f'data-act="{address}"' in acting


def test_without_a_cluster_the_page_leads_to_adding_one(viewer: Client) -> None:
    assert "Add a live cluster with its kubeconfig" in words(viewer, "/clusters/")
