"""Measured samples expire by the server's clock: immediately if they arrive late, otherwise when they age."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from hetsched.adapters.files import parse_cluster
from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.messages.agent_message import AgentMessage, digest_of
from hetsched.contracts.messages.agent_report import AgentReport, MachineIsa, MachineUsage, MachineZone
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.collected import Collected, CollectedNode
from hetsched.contracts.objects.node_report import Usage
from hetsched.contracts.objects.observed import Changes
from hetsched.contracts.times import rfc3339
from hetsched.contracts.units import CPU, MEMORY
from hetsched.contracts.waits import Event, WaitsFor
from hetsched.engine.cluster.state import ClusterState
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.agent_messages import apply_samples, receive
from hetsched.inventory.collection import store_findings
from hetsched.inventory.freshness import due_at, mark_expired
from hetsched.inventory.models import Cluster, ClusterKind, Collector, Connection, Node
from hetsched.inventory.models.node_facts import NodeFacts
from hetsched.inventory.sample_expiry import expire_samples
from hetsched.placement.actions import apply_changes, export_cluster
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import Decision, Pod
from hetsched.placement.queries.topics import snapshot
from hetsched.placement.scheduler_cache import cache_of
from hetsched.placement.scheduling_queue.active_queue import first_active_pods
from hetsched.placement.scheduling_result import Result
from tests.builders import NodeBuilder, a_node, a_pod
from tests.builtins import builtin_policies
from tests.listener import Listener
from tests.situations import ALICE, a_cluster, recorded, submitted
from workers import schedule, sweep

pytestmark = pytest.mark.django_db

START = datetime(2026, 11, 23, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """Return the time `seconds` after the start."""
    return START + timedelta(seconds=seconds)


def a_viewer() -> Client:
    """Return a client with a new login, because sessions expire by the clock too."""
    user = User.objects.create_user("viewer", password="a long enough password")
    user.groups.set(Group.objects.filter(name="viewer"))
    client = Client()
    client.force_login(user)
    return client


def sampled(name: str, taken: float | None, cpu: str, memory: str = "1Gi") -> NodeBuilder:
    """Return a node of 8 CPUs, sampled this many seconds after the start; None: the sample has no time."""
    return a_node(name).using("" if taken is None else rfc3339(at(taken)), cpu=cpu, memory=memory)


def measured(taken: float) -> Cluster:
    """Import a cluster: `busy` uses 7.5 of 8 CPUs and has no requests, `idle` has requests of 2 and uses nothing."""
    nodes = (sampled("busy", taken, "7500m"), sampled("idle", taken, "0", "0"))
    return a_cluster(*nodes, running=(a_pod("r").cpu(2).running_on("idle"),))


def decided(cluster: Cluster, name: str) -> Decision:
    submitted(cluster, a_pod(name).cpu(1), policy="mbcgt")
    schedule.run(cluster.pk)
    return Decision.objects.get(pod=Pod.objects.get(name=name))


def stale(cluster: Cluster) -> list[str]:
    """Return the nodes with stale samples; a cached and a reloaded state have to agree."""
    with cache_of(cluster.pk).locked_snapshot() as loaded:
        kept, digest = loaded.state.stale(), loaded.state.digest()
    folded = load_state(cluster.pk).state
    assert (kept, digest) == (folded.stale(), folded.digest())
    return kept


def usage(name: str = "n1") -> Usage:
    found: Usage | None = Node.objects.get(name=name).report.usage
    assert found is not None
    return found


def test_fresh_samples_of_an_import_decide() -> None:
    with time_machine.travel(at(299), tick=False):
        decision = decided(measured(0), "p")
    assert decision.node_name == "idle"
    assert "stale" not in decision.summary


def test_old_samples_of_an_import_leave_the_decision_to_requests() -> None:
    with time_machine.travel(at(301), tick=False):
        cluster = measured(0)
        assert stale(cluster) == ["busy", "idle"]
        decision = decided(cluster, "p")
    assert decision.node_name == "busy"
    assert "for 2 of 2 nodes, the decision uses requests because the measured use is stale" in decision.summary


def test_samples_that_age_together_stop_counting_by_the_sweep() -> None:
    with time_machine.travel(at(10), tick=False) as clock:
        cluster = measured(0)
        assert stale(cluster) == []
        clock.move_to(at(299))
        sweep.run()
        assert stale(cluster) == []
        clock.move_to(at(301))
        sweep.run()
        assert stale(cluster) == ["busy", "idle"]
        assert decided(cluster, "p").node_name == "busy"
        viewer = a_viewer()
        shown = viewer.get("/api/v1/metrics/balance/").json()
        assert shown["byRequests"] == ["busy", "idle"]
        page = viewer.get("/balance/").content.decode()
    assert "based on requests: 2 nodes have no current sample" in page
    assert "A sample is stale if it is more than 5 minutes old" in page


def test_expired_sample_requeues_pods_and_is_published() -> None:
    with time_machine.travel(at(10), tick=False) as clock:
        cluster = a_cluster(sampled("n1", 0, "1"), sampled("n2", None, "1"), sampled("n3", 100, "1"))
        submitted(cluster, a_pod("use"))
        waits = (WaitsFor("test", (Event.NODE_USE,), "it"),)
        refused = [
            Result(pod, Verdict.NOT_NOW, "no", "hetsched", 1, waits_for=waits)
            for pod in first_active_pods(cluster.pk, None, 500)
        ]
        recorded(cluster, refused)
        assert not Pod.objects.get(name="use").queued
        before, client = Cluster.objects.get(), Listener("node:fleet/n1")
        clock.move_to(at(301))
        assert expire_samples(cluster.pk) == 1
    after = Cluster.objects.get()
    assert after.inventory_revision == after.revision == before.revision + 1
    assert after.layout_revision == before.layout_revision
    changed = Node.objects.filter(changed_revision=after.revision).values_list("name", flat=True)
    assert list(changed) == ["n1"]
    assert Pod.objects.get(name="use").queued
    client.listen()
    assert client.document == snapshot(client.topic).data
    assert client.document["report"]["usage"]["stale"] is True


def test_sweep_without_expired_samples_keeps_the_revision() -> None:
    with time_machine.travel(at(301), tick=False):
        cluster = a_cluster(sampled("n1", 10, "1"), sampled("n2", None, "1"), sampled("n3", 0, "1"))
        before = Cluster.objects.get().revision
        assert (expire_samples(cluster.pk), Cluster.objects.get().revision) == (0, before)
    assert stale(cluster) == ["n3"]


def test_sweep_marks_a_bounded_number_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetsched.inventory.sample_expiry._MOST", 2)
    with time_machine.travel(at(0), tick=False) as clock:
        cluster = a_cluster(*(sampled(f"n{i}", 0, "1") for i in range(5)))
        clock.move_to(at(301))
        assert [expire_samples(cluster.pk) for _ in range(4)] == [2, 2, 1, 0]


@pytest.fixture
def live() -> Cluster:
    """Return a live cluster without nodes, with an informer under epoch 1."""
    builtin_policies()
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=ALICE)
    Connection.objects.create(cluster=made, follower_epoch=1)
    return made


def seen(cluster: Cluster, *nodes: NodeBuilder) -> None:
    apply_changes(cluster.pk, Changes(nodes=[node.build() for node in nodes]), epoch=1)


def test_live_cluster_sample_expires_and_is_renewed(live: Cluster) -> None:
    with time_machine.travel(at(0), tick=False) as clock:
        seen(live, sampled("n1", 0, "1"), sampled("n2", -301, "1"))
        assert stale(live) == ["n2"]
        clock.move_to(at(301))
        expire_samples(live.pk)
        assert stale(live) == ["n1", "n2"]
        seen(live, sampled("n1", 300, "2"))
        assert stale(live) == ["n2"]


def test_relisted_old_object_stays_stale(live: Cluster) -> None:
    with time_machine.travel(at(0), tick=False) as clock:
        seen(live, sampled("n1", 0, "1"))
        clock.move_to(at(301))
        expire_samples(live.pk)
        before = Node.objects.get().changed_revision
        seen(live, sampled("n1", 0, "1"))
        assert Node.objects.get().changed_revision == before
        seen(live, sampled("n1", 0, "1").labelled(changed="yes"))
        assert (stale(live), Node.objects.get().report.labels["changed"]) == (["n1"], "yes")


def receive_report(cluster: Cluster, sequence: int, taken: float) -> None:
    report = AgentReport("n1", MachineIsa("x86", "x86-64-v3"), (MachineZone(0, "0-7", 32768),), (), None)
    use = MachineUsage({CPU: 500, MEMORY: 1}, observed_at=rfc3339(at(taken)))
    receive(cluster, AgentMessage("n1", "i", rfc3339(START), sequence, digest_of(report), report, usage=use))


def test_agent_sample_expires_and_a_late_one_is_stale(live: Cluster, settings: Any) -> None:
    settings.HETSCHED_AGENT_PAUSE_MILLIS = 0
    with time_machine.travel(at(0), tick=False) as clock:
        seen(live, a_node("n1"))
        receive_report(live, 1, 0)
        assert not usage().stale
        clock.move_to(at(301))
        expire_samples(live.pk)
        assert usage().stale
        receive_report(live, 2, 300)
        apply_samples(live.pk)
        assert not usage().stale
        clock.move_to(at(900))
        receive_report(live, 3, 310)
        apply_samples(live.pk)
        assert usage() == Usage({CPU: 500, MEMORY: 1}, rfc3339(at(310)), stale=True)
        seen(live, a_node("n1").labelled(changed="yes"))
        assert usage().stale


def collected(cluster: Cluster, **more: Any) -> Collector:
    row = Collector.objects.create(cluster=cluster, name="prom", kind="prometheus-load", load=True, **more)
    store_findings(
        row, Collected((CollectedNode("n1", rfc3339(timezone.now()), usage={CPU: 6000}),)), now=timezone.now()
    )
    return row


def test_collector_sample_expires_by_its_collectors_setting() -> None:
    with time_machine.travel(at(0), tick=False) as clock:
        cluster = a_cluster(a_node("n1"))
        collected(cluster, most_age_seconds=3600)
        clock.move_to(at(3599))
        expire_samples(cluster.pk)
        assert stale(cluster) == []
        clock.move_to(at(3601))
        expire_samples(cluster.pk)
        assert stale(cluster) == ["n1"]


def test_older_collector_sample_counts_with_a_newer_one_of_an_agent(live: Cluster, settings: Any) -> None:
    settings.HETSCHED_AGENT_PAUSE_MILLIS = 0
    with time_machine.travel(at(0), tick=False) as clock:
        seen(live, a_node("n1"), a_node("n2"))
        row = Collector.objects.create(
            cluster=live, name="prom", kind="prometheus-load", load=True, most_age_seconds=3600
        )
        store_findings(row, Collected((CollectedNode("n2", rfc3339(at(0)), usage={CPU: 6000}),)), now=timezone.now())
        clock.move_to(at(1000))
        receive_report(live, 1, 1000)
        apply_samples(live.pk)
        assert stale(live) == []


def test_future_sample_does_not_expire_others(live: Cluster) -> None:
    with time_machine.travel(at(0), tick=False):
        seen(live, sampled("n1", 0, "1"), sampled("n2", 300, "1"), sampled("n3", -300, "1"), sampled("n4", 301, "1"))
        assert stale(live) == ["n4"]


def test_other_source_counts_once_an_idle_collector_expired(live: Cluster, settings: Any) -> None:
    settings.HETSCHED_AGENT_PAUSE_MILLIS = 0
    with time_machine.travel(at(0), tick=False) as clock:
        seen(live, a_node("n1"))
        row = collected(live)
        clock.move_to(at(301))
        expire_samples(live.pk)
        assert NodeFacts.objects.get().collected[0].stale
        receive_report(live, 1, 300)
        assert (usage().amounts[CPU], usage().stale) == (500, False)
        store_findings(row, Collected((CollectedNode("n1", rfc3339(at(301)), usage={CPU: 6000}),)), now=timezone.now())
        assert (usage().amounts[CPU], usage().stale) == (6000, False)


def test_export_keeps_the_stale_mark() -> None:
    with time_machine.travel(at(0), tick=False) as clock:
        cluster = measured(0)
        clock.move_to(at(301))
        expire_samples(cluster.pk)
        text = write_cluster(export_cluster(cluster))
    content = parse_cluster([("export.json", text)])
    assert ClusterState.of(content).stale() == ["busy", "idle"]


def test_samples_of_an_imported_file_do_not_expire() -> None:
    nodes = (sampled("n1", 0, "1").build(), sampled("n2", -299, "1").build(), sampled("n3", -301, "1").build())
    with time_machine.travel(at(10**6), tick=False):
        assert ClusterState.of(ClusterContent(nodes=nodes)).stale() == ["n3"]


@pytest.mark.parametrize("taken", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "soon", "", "2026-11-23T12:00:00"])
def test_any_time_is_handled(taken: str) -> None:
    sample = Usage({CPU: 1}, taken)
    marked = mark_expired(sample, START)
    assert marked is not None
    assert marked.stale == taken.startswith(("0001", "9999"))
    due = due_at(sample, START)
    assert due is None or START <= due <= START + timedelta(days=1)


def test_samples_from_before_the_upgrade_are_checked() -> None:
    with time_machine.travel(at(0), tick=False):
        cluster = a_cluster(sampled("n1", 0, "1"), sampled("n2", None, "1"), a_node("n3"))
        Node.objects.update(sample_due_at=timezone.now())  # as the migration does
        assert expire_samples(cluster.pk) == 0
        assert list(Node.objects.order_by("name").values_list("sample_due_at", flat=True)) == [at(300), None, None]
