"""Decisions use measurements of Prometheus, and visibly use requests as soon as it is unavailable.

Real here: Prometheus and node_exporter. One exporter reports this machine, two report simulated machines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from hetsched.contracts.units import CPU, DISK_MBPS, MEMORY, NETWORK_MBPS
from hetsched.inventory.collection import configure
from hetsched.inventory.connection_check import check_cluster
from hetsched.inventory.models import Cluster, Collector, Node
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import Decision
from hetsched.placement.scheduler_cache import cache_of
from tests.builders import NodeBuilder, a_node, a_pod
from tests.situations import ALICE, a_cluster, submitted
from tests.system.processes import wait_until
from tests.workers.monitoring import Machine, Monitoring, a_monitoring
from web.api.monitoring.fleet import Fleet
from workers import collect, schedule

pytestmark = [pytest.mark.needs("prometheus", "node-exporter"), pytest.mark.django_db]

GIB = 2**30


@pytest.fixture(scope="module")
def monitoring() -> Iterator[Monitoring]:
    """Yield a Prometheus that scrapes a machine with 3.9 of its 4 cores in use, an idle one, and this one."""
    busy = Machine(cpu=3.9, memory=2 * GIB, network=5_000_000, disk=15_000_000)
    idle = Machine(cpu=0.1, memory=GIB)
    with a_monitoring({"busy": busy, "idle": idle}) as watched:
        yield watched


@pytest.fixture
def cluster(settings: Any, monitoring: Monitoring) -> Cluster:
    """Return a cluster of two equal nodes, and this machine as a cordoned node."""
    settings.HETSCHED_SOURCE_HOSTS = [monitoring.host]
    here = sized(a_node("here")).cordoned().having(addresses=("127.0.0.1",))
    made = a_cluster(sized(a_node("busy")), sized(a_node("idle")), here)
    params = {"url": monitoring.url, "window_seconds": 10}
    configure(made, "load", kind="prometheus-load", params=params, interval_seconds=5, actor=ALICE, reason="measure")
    return made


def sized(node: NodeBuilder) -> NodeBuilder:
    return node.cpu(4).memory("8Gi").offering(NETWORK_MBPS, 100).offering(DISK_MBPS, 100)


def asked() -> bool:
    """Run the collector as if it were due."""
    Collector.objects.update(due_at=timezone.now())
    return collect.run(Collector.objects.get().pk)


def decided(cluster: Cluster, name: str) -> Decision:
    submitted(cluster, a_pod(name).cpu(1).policy("mbcgt"))
    schedule.run(cluster.pk)
    return Decision.objects.get(pod__name=name)


def used(node: str) -> dict[str, int]:
    usage = Node.objects.get(name=node).report.usage
    return usage.amounts if usage is not None else {}


def near(amounts: dict[str, int]) -> bool:
    """Return whether these amounts match the busy machine, within a tenth.

    3.9 cores; 2 GiB; 5 000 000 bytes/s each way * 8 / 10^6 = 40 Mbit/s, the busier way; 15 + 15 MB/s.
    """
    expected = {CPU: 3900, NETWORK_MBPS: 40, DISK_MBPS: 30}
    close = all(abs(amounts.get(name, 0) - value) <= value / 10 for name, value in expected.items())
    return close and amounts.get(MEMORY) == 2 * GIB


def figures(cluster: Cluster) -> dict[str, float]:
    return {
        sample.name: sample.value
        for family in Fleet().collect()
        for sample in family.samples
        if sample.labels.get("collector") == "load"
    }


@pytest.fixture
def viewer() -> Client:
    user = User.objects.create_user("viewer", password="a long enough password")
    user.groups.set(Group.objects.filter(name="viewer"))
    client = Client()
    client.force_login(user)
    return client


def test_decision_uses_measured_load_and_falls_back_to_requests(
    cluster: Cluster, monitoring: Monitoring, viewer: Client
) -> None:
    # Not collected yet: by requests both are empty, and the first by name wins.
    assert decided(cluster, "before").node_name == "busy"

    # A busy machine writes and reads late: a rate approaches its value after some scrapes.
    wait_until(lambda: asked() and near(used("busy")), what=lambda: f"not near: {used('busy')}", seconds=90)
    row = Collector.objects.get()
    assert (row.nodes_reported, row.nodes_stale, row.stale_since, row.problems) == (3, 0, None, [])
    busy = Node.objects.get(name="busy").report.usage
    assert busy is not None
    assert busy.source == "load"
    here = Node.objects.get(name="here").report.usage
    assert here is not None
    assert 0 <= here.amounts[CPU] <= 1000 * (os.cpu_count() or 1) * 1.2
    assert here.amounts[MEMORY] > 2**26

    measured = decided(cluster, "measured")
    assert measured.node_name == "idle"  # 3.9 cores and one more do not fit on the other node
    assert "stale" not in measured.summary
    page = viewer.get("/balance/").content.decode()
    assert 'data-source="load"' in page
    assert "chip good" in page
    shown = viewer.get("/api/v1/nodes/busy/balance/").json()
    assert shown["origin"]["source"] == "load"
    assert shown["resources"][CPU]["ratio"] > 0.8
    balance = viewer.get("/api/v1/metrics/balance/").json()
    assert (balance["byRequests"], balance["sources"][0]["up"]) == ([], True)
    assert figures(cluster)["hetsched_collector_up"] == 1
    assert [(check.check, check.ok) for check in check_cluster(cluster)] == [("source load", True)]

    monitoring.exporter_down("idle")
    wait_until(lambda: not monitoring.query('node_memory_MemTotal_bytes{node="idle"}'), what="the sample is stale")
    assert asked()  # rates over some seconds may still have a value for it
    assert load_state(cluster.pk).state.stale() == ["idle"]
    row.refresh_from_db()
    assert (row.nodes_reported, row.nodes_stale, row.stale_since) == (3, 1, None)

    monitoring.down()
    assert not asked()  # the next run: within one interval
    row.refresh_from_db()
    assert row.stale_since is not None
    assert row.failure_code == "HostUnreachable"
    # busy holds one core of 4, idle one: by requests they are equal again.
    alone = decided(cluster, "afterwards")
    assert alone.node_name == "busy"
    assert "for 3 of 3 nodes, the decision uses requests because the measured use is stale" in alone.summary
    page = viewer.get("/balance/").content.decode()
    assert "chip bad" in page
    assert viewer.get("/nodes/busy/balance/").content.decode().count("chip bad") == 1
    balance = viewer.get("/api/v1/metrics/balance/").json()
    assert balance["byRequests"] == ["busy", "here", "idle"]
    assert (balance["sources"][0]["up"], balance["sources"][0]["nodesStale"]) == (False, 3)
    assert viewer.get("/api/v1/nodes/busy/balance/").json()["stale"] is True
    assert figures(cluster)["hetsched_collector_up"] == 0
    assert figures(cluster)["hetsched_collector_nodes_stale"] == 3
    (finding,) = check_cluster(cluster)
    assert not finding.ok
    assert monitoring.host in finding.detail
    with cache_of(cluster.pk).locked_snapshot() as loaded:
        assert loaded.state.digest() == load_state(cluster.pk).state.digest()
