"""The balance page: requested and measured use, the source of measurements, and their expiry."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hetsched.contracts.objects.collected import Collected, CollectedNode
from hetsched.contracts.times import rfc3339
from hetsched.inventory.collection import record_failure, store_findings
from hetsched.inventory.models import Cluster, Collector
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, placed

from .reading import main_of


def words(client: Client, address: str, language: str = "en") -> str:
    """Return the text of a page without its tags."""
    page = client.get(address, headers={"accept-language": language}).content.decode()
    body = main_of(page)
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


@pytest.fixture
def measured(db: Any) -> Collector:
    """Return the collector of a cluster of two nodes of 8 CPUs, one of which it measured: 6 in use, 2 requested."""
    cluster = a_cluster(a_node("n1"), a_node("n2"), running=(a_pod("r").cpu(2).running_on("n1"),))
    row = Collector.objects.create(cluster=cluster, name="prom", kind="prometheus-load", load=True)
    now = timezone.now()
    store_findings(row, Collected((CollectedNode("n1", rfc3339(now), usage={"cpu": 6000}),)), now=now)
    row.refresh_from_db()
    return row


def test_both_balances_are_shown_with_the_source(viewer: Client, measured: Collector) -> None:
    text = words(viewer, "/balance/")
    assert "based on requests: 1 node has no current sample" in text
    # CPU: 16 in all; 2 requested = 12 %; 6 of the 8 measured = 75 %; counted 6 + 0 of 16 = 38 %
    assert re.search(r"CPU 16 12 % 2 75 % 6 · 1 node 38 %", text)
    assert re.search(r"prom prometheus-load 1 node stale", text)


def test_different_values_are_explained(viewer: Client, measured: Collector) -> None:
    placed(measured.cluster, "n1", a_pod("late").cpu(1))
    text = words(viewer, "/nodes/n1/balance/")
    # 6 of 8 CPUs in the sample, 1 placed since: 7 of 8 are counted, where 3 are requested.
    assert "88 % 75 % measured + 13 % of pods placed since then" in text
    for address in ("/nodes/n1/balance/", "/balance/"):
        shown = words(viewer, address)
        assert "Requested Sum of the pod requests." in shown, address
        assert "Measured Resource use in the latest sample." in shown, address
        assert "Effective Resource use from which the balance is computed" in shown, address
    assert "this node" not in words(viewer, "/balance/")
    assert "CPU use in the latest sample: 75 %." in words(viewer, "/nodes/n1/")


def test_silent_source_is_reported(viewer: Client, measured: Collector) -> None:
    record_failure(measured, "HostUnreachable", "prom:9090 does not answer", now=timezone.now())
    text = words(viewer, "/balance/")
    assert "based on requests: 2 nodes have no current sample" in text
    assert "stale, not used" in text
    assert "prom:9090 does not answer" in text
    assert re.search(r"CPU 16 12 % 2 unknown 12 %", text)
    assert "source prom) is stale. hetsched uses the requests instead." in words(viewer, "/nodes/n1/balance/")
    assert "prom has no sample of this node. hetsched uses the requests instead." in words(viewer, "/nodes/n2/balance/")
    assert "以请求量计：2 个节点没有最新采样" in words(viewer, "/balance/", "zh-hans")


def minutes_ago(minutes: int) -> str:
    return rfc3339(timezone.now() - timedelta(minutes=minutes))


def test_measured_use_is_the_sample_on_both_pages(viewer: Client, db: None) -> None:
    # 1 of 8 CPUs in use at the time of the sample; a pod of 4 CPUs came afterwards and is added to the sample.
    cluster = a_cluster(a_node("n1").using(minutes_ago(1), cpu="1"))
    assert re.search(r"CPU 8 0 % 0 12 % 1 · 1 node 12 %", words(viewer, "/balance/"))
    placed(cluster, "n1", a_pod("late").cpu(4))
    assert re.search(r"CPU 8 50 % 4 12 % 1 · 1 node 6[23] %", words(viewer, "/balance/"))
    assert re.search(r"cpu 8 50 % 4 12 % 1 6[23] %", words(viewer, "/nodes/n1/balance/"))


def test_missing_samples_are_reported_as_stale(viewer: Client, db: None) -> None:
    a_cluster(a_node("n1").using(minutes_ago(1), cpu="1"))
    assert "newest sample" in words(viewer, "/balance/")
    assert "older than" not in words(viewer, "/balance/")
    a_cluster(a_node("n1").using(minutes_ago(60), cpu="1"), a_node("n2").using(minutes_ago(61), cpu="1"), name="silent")
    text = words(viewer, "/balance/?cluster=silent")
    assert "based on requests: 2 nodes have no current sample 0 of 2 nodes are measured newest sample" in text
    assert "older than 5 minutes" in text
    assert (
        "A sample is stale if it is more than 5 minutes old, or more than 5 minutes older than the newest sample"
        in text
    )
    assert "采样超过 5 分钟，或比集群中最新的采样早 5 分钟以上，即为过期。" in words(
        viewer, "/balance/?cluster=silent", "zh-hans"
    )
    a_cluster(a_node("n1").using("", cpu="1"), name="undated")
    assert "1 of 1 nodes are measured no sample has a timestamp" in words(viewer, "/balance/?cluster=undated")


def test_page_without_a_source_states_that_requests_are_used(viewer: Client, cluster: Cluster) -> None:
    assert "No metric source is configured for this cluster" in words(viewer, "/balance/")


def test_page_without_a_cluster_links_to_the_form(viewer: Client) -> None:
    assert "No clusters" in words(viewer, "/balance/")


def test_cluster_without_nodes_is_reported(viewer: Client, db: None) -> None:
    Cluster.objects.create(name="bare")
    assert "This cluster has no nodes." in words(viewer, "/balance/")
