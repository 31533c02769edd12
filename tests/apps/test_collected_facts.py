"""Node facts of collectors: used while they are fresh, reported when they are stale, deleted with their collector.

Faked here: the responses of the sources. tests/workers has a real Prometheus.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.collected import Collected, CollectedNode
from hetsched.contracts.objects.node_report import PowerReport
from hetsched.contracts.objects.observed import Changes
from hetsched.contracts.times import rfc3339
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.collection import (
    allowed_hosts,
    claim_collector,
    configure,
    due_collectors,
    http_client,
    record_failure,
    remove,
    store_findings,
)
from hetsched.inventory.fact_review import override
from hetsched.inventory.models import Cluster, ClusterKind, Collector, Connection, Node
from hetsched.inventory.models.node_facts import NodeFacts
from hetsched.journal.audit import SYSTEM
from hetsched.journal.models import AuditEntry
from hetsched.placement.actions import apply_changes
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.queries.topics import snapshot
from hetsched.placement.scheduler_cache import cache_of
from tests.builders import a_node
from tests.builtins import builtin_policies
from tests.listener import Listener
from tests.situations import ALICE, a_cluster

pytestmark = pytest.mark.django_db

URL = "http://racks.example:8080/v1"
JSON = {"url": URL, "power_state": "$.state", "zones": "$.zones"}
LOAD = {"url": URL}


@pytest.fixture(autouse=True)
def named(settings: Any) -> None:
    settings.HETSCHED_SOURCE_HOSTS = ["racks.example:8080"]


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster(a_node("n1").zone("node-0", cpus="0-7"), a_node("n2").zone("node-0", cpus="0-7"))


def collector(cluster: Cluster, kind: str = "http-json", **more: Any) -> Collector:
    params = LOAD if kind == "prometheus-load" else JSON
    return configure(
        cluster, "racks", **{"kind": kind, "params": params, "actor": ALICE, "reason": "racks know", **more}
    )


def now(seconds_ago: float = 0) -> str:
    return rfc3339(timezone.now() - timedelta(seconds=seconds_ago))


def receive_findings(row: Collector, *findings: CollectedNode) -> None:
    store_findings(row, Collected(findings), now=timezone.now())
    row.refresh_from_db()


def failed(row: Collector) -> None:
    record_failure(row, "HostUnreachable", "connection refused", now=timezone.now())
    row.refresh_from_db()


def report(name: str = "n1") -> Any:
    return Node.objects.get(name=name).report


def offline(name: str = "n1") -> int | None:
    value: int | None = report(name).numa.zones[0].offline_capacity_millis
    return value


def test_facts_are_the_nodes_until_their_source_failed_too_often(cluster: Cluster) -> None:
    row = collector(cluster, most_failures=2)
    receive_findings(row, CollectedNode("n1", now(), zones={"0": 3000}, power=PowerReport("capped")))
    assert (offline(), report().power) == (3000, PowerReport("capped"))
    claims = Node.objects.get(name="n1").facts.claims
    assert [(said.source, said.text) for said in claims["power.state"]] == [("collector racks", "capped")]
    assert offline("n2") is None
    failed(row)
    assert (offline(), row.stale_since) == (3000, None)
    failed(row)
    assert (offline(), report().power) == (None, None)
    assert row.stale_since is not None
    assert report().problems[0].startswith("CollectedStale: the report of collector racks from ")
    receive_findings(row, CollectedNode("n1", now(), power=PowerReport("on")))
    assert (report().power, report().problems, row.stale_since) == (PowerReport("on"), (), None)
    assert check_invariants() == []


def test_stale_observation_is_ignored(cluster: Cluster) -> None:
    row = collector(cluster, most_age_seconds=60)
    receive_findings(
        row,
        CollectedNode("n1", now(90), power=PowerReport("off")),
        CollectedNode("n2", now(30), power=PowerReport("off")),
    )
    assert (report("n1").power, report("n2").power) == (None, PowerReport("off"))
    assert (row.nodes_reported, row.nodes_stale) == (2, 1)


def test_repeated_fact_changes_no_node(cluster: Cluster) -> None:
    row = collector(cluster)
    facts = {"zones": {"node-0": 4000}, "power": PowerReport("on")}
    receive_findings(row, *(CollectedNode(name, now(20), **facts) for name in ("n1", "n2")))
    before = Node.objects.get(name="n1").changed_revision
    again = now()
    receive_findings(
        row,
        CollectedNode("n1", again, **facts),
        CollectedNode("n2", again, zones={"node-0": 3000}, power=PowerReport("on")),
    )
    changed = {node.name: node.changed_revision > before for node in Node.objects.all()}
    assert (changed, offline("n1"), offline("n2")) == ({"n1": False, "n2": True}, 4000, 3000)
    rows = {facts.node.name: facts for facts in NodeFacts.objects.select_related("node")}
    assert [facts.collected[0].finding.observed_at for facts in rows.values()] == [again, again]
    (said,) = rows["n1"].claims["offline-capacity.node-0"]
    assert said.last_at > said.first_at


def test_missing_zone_is_a_problem(cluster: Cluster) -> None:
    receive_findings(collector(cluster), CollectedNode("n1", now(), zones={"7": 1}))
    assert report().problems == ("CollectedZoneUnknown: collector racks reports zones that the node does not have: 7",)


def test_override_by_an_operator_has_precedence(cluster: Cluster) -> None:
    row = collector(cluster)
    receive_findings(row, CollectedNode("n1", now(), zones={"node-0": 3000}))
    until = rfc3339(timezone.now() + timedelta(hours=1))
    override(cluster, "n1", "offline-capacity.node-0", "2", until, actor=ALICE, reason="measured it")
    assert offline() == 2000
    receive_findings(row, CollectedNode("n1", now(), zones={"node-0": 3500}))
    assert offline() == 2000


def test_use_expires_with_the_first_failure(cluster: Cluster) -> None:
    row = collector(cluster, "prometheus-load")
    receive_findings(row, CollectedNode("n1", now(), usage={"cpu": 1500}))
    state = load_state(cluster.pk).state
    assert state.stale() == ["n2"]  # it should be measured, and is not
    assert state.reports[0].usage is not None
    assert state.reports[0].usage.source == "racks"
    failed(row)
    state = load_state(cluster.pk).state
    assert state.stale() == ["n1", "n2"]
    assert int(state.columns.field("measured").sum()) == 0
    with cache_of(cluster.pk).locked_snapshot() as loaded:
        assert loaded.state.digest() == state.digest()


def test_failing_source_without_samples_is_reported_too(cluster: Cluster) -> None:
    failed(collector(cluster, "prometheus-load"))
    assert load_state(cluster.pk).state.stale() == ["n1", "n2"]


def test_later_samples_of_other_collectors_replace_a_stale_one() -> None:
    made = a_cluster(a_node("n1").using(now(), cpu="700m"))
    row = collector(made, "prometheus-load")
    receive_findings(row, CollectedNode("n1", now(30), usage={"cpu": 1500}))
    assert report().usage.amounts["cpu"] == 1500
    failed(row)
    assert (report().usage.amounts["cpu"], report().usage.source) == (700, "")
    assert load_state(made.pk).state.stale() == []


def test_earlier_samples_of_other_collectors_are_not_restored() -> None:
    made = a_cluster(a_node("n1").using(now(3600), cpu="700m"))
    row = collector(made, "prometheus-load")
    receive_findings(row, CollectedNode("n1", now(30), usage={"cpu": 1500}))
    failed(row)
    assert load_state(made.pk).state.stale() == ["n1"]


def test_repeated_list_of_the_api_server_removes_no_fact() -> None:
    builtin_policies()
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made, follower_epoch=1)
    node = a_node("n1").zone("node-0", cpus="0-7")
    apply_changes(made.pk, Changes(nodes=[node.build()]), epoch=1)
    receive_findings(collector(made), CollectedNode("n1", now(), zones={"node-0": 3000}))
    row = configure(made, "load", kind="prometheus-load", params=LOAD, actor=ALICE, reason="measure")
    receive_findings(row, CollectedNode("n1", now(), usage={"cpu": 1500}))
    apply_changes(made.pk, Changes(nodes=[node.labelled(changed="yes").build()]), epoch=1)
    assert (offline(), report().usage.amounts) == (3000, {"cpu": 1500})
    assert report().labels["changed"] == "yes"


def test_gpu_list_can_be_removed_with_a_collector() -> None:
    builtin_policies()
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made, follower_epoch=1)
    apply_changes(made.pk, Changes(nodes=[a_node("n1").gpus(2).build()]), epoch=1)
    receive_findings(collector(made), CollectedNode("n1", now(), power=PowerReport("capped")))
    apply_changes(made.pk, Changes(nodes=[a_node("n1").having(gpus=None).build()]), epoch=1)
    row = Node.objects.get(name="n1").facts
    assert (report().gpus, report().power, row.quarantined) == (None, PowerReport("capped"), ())


def test_node_page_gets_each_sample_and_its_end(cluster: Cluster) -> None:
    row = collector(cluster, "prometheus-load")
    for usage in ({"cpu": 1500, "memory": 7}, {"cpu": 1600}):
        receive_findings(row, CollectedNode("n1", now(), usage=usage))
    client = Listener("node:fleet/n1")
    receive_findings(row, CollectedNode("n1", now(), usage={"memory": 9}))
    failed(row)
    remove(cluster, "racks", actor=ALICE, reason="moved")
    client.listen()
    assert client.document == snapshot(client.topic).data


def test_facts_are_deleted_with_their_collector(cluster: Cluster) -> None:
    row = collector(cluster, "prometheus-load")
    receive_findings(row, CollectedNode("n1", now(), usage={"cpu": 1500}))
    remove(cluster, "racks", actor=ALICE, reason="moved")
    assert (report("n1").usage, report("n2").usage) == (None, None)
    assert not Collector.objects.exists()
    actions = AuditEntry.objects.filter(action__startswith="collector.").values_list("action", flat=True)
    assert sorted(actions) == ["collector.add", "collector.remove"]


def test_facts_of_previous_settings_are_dropped(cluster: Cluster) -> None:
    before = collector(cluster)
    collector(cluster, most_age_seconds=7)
    receive_findings(before, CollectedNode("n1", now(), power=PowerReport("off")))
    assert report().power is None


def test_one_of_two_concurrent_claims_succeeds(cluster: Cluster) -> None:
    row = collector(cluster)
    at = timezone.now()
    assert due_collectors(at) == [row.pk]
    assert claim_collector(row.pk, at) is not None
    assert claim_collector(row.pk, at) is None
    assert due_collectors(at) == []
    assert due_collectors(at + timedelta(seconds=31)) == [row.pk]


def test_two_beat_processes_run_a_collector_once(cluster: Cluster) -> None:
    row = collector(cluster)
    at = timezone.now()
    taken = []

    def another_beat(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("UPDATE") and not taken:  # it has read the due row, and is about to claim it
            taken.append(True)
            Collector.objects.filter(pk=row.pk).update(due_at=at + timedelta(seconds=30))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(another_beat):
        assert claim_collector(row.pk, at) is None
    assert taken


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"reason": " "}, "ReasonMissing"),
        ({"kind": "pigeon"}, "CollectorUnknown"),
        ({"params": {}}, "CollectorParamInvalid"),
        ({"params": {**JSON, "url": "http://169.254.169.254/"}}, "SourceNotAllowed"),
        ({"params": {**JSON, "url": "http://racks.example:8081/"}}, "SourceNotAllowed"),
        ({"params": {**JSON, "url": "http://u:p@racks.example:8080/"}}, "SourceNotAllowed"),
        ({"params": {**JSON, "url": "file:///etc/passwd"}}, "SourceNotAllowed"),
        ({"interval_seconds": 0}, "CollectorParamInvalid"),
        ({"most_failures": 0}, "CollectorParamInvalid"),
    ],
)
def test_wrong_collectors_are_refused(cluster: Cluster, more: dict[str, Any], code: str) -> None:
    with pytest.raises(InputError) as refused:
        collector(cluster, **more)
    assert refused.value.code == code
    assert not Collector.objects.exists()


def test_nothing_is_collected_without_a_target(cluster: Cluster, settings: Any) -> None:
    settings.HETSCHED_SOURCE_HOSTS = []
    assert not allowed_hosts()
    with pytest.raises(InputError) as refused:
        collector(cluster)
    assert refused.value.code == "SourceNotAllowed"


def test_token_is_encrypted_and_sent_to_its_address_only(cluster: Cluster, settings: Any) -> None:
    settings.SECRET_KEY_GIVEN = True
    settings.HETSCHED_SOURCE_HOSTS = ["racks.example:8080", "other.example:80"]
    row = collector(cluster, token="canary-of-a-token")
    row.refresh_from_db()
    assert "canary" not in row.sealed_token
    assert http_client(row)._headers["Authorization"] == "Bearer canary-of-a-token"
    assert not AuditEntry.objects.filter(details__icontains="canary").exists()
    with pytest.raises(InputError) as refused:
        collector(cluster, params={**JSON, "url": "http://other.example:80/"})
    assert refused.value.code == "TokenMissing"
    moved = collector(cluster, params={**JSON, "url": "http://other.example:80/"}, token="")
    assert "Authorization" not in http_client(moved)._headers


def test_node_document_follows_a_removed_fact(cluster: Cluster) -> None:
    """Regression: live pages of a node kept the power state of a removed collector."""
    receive_findings(collector(cluster), CollectedNode("n1", now(), power=PowerReport("capped")))
    client = Listener("node:fleet/n1")
    remove(cluster, "racks", actor=ALICE, reason="moved")
    client.listen()
    assert (report().power, client.document) == (None, snapshot(client.topic).data)
