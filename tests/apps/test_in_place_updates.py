"""A running pod that is resized or relabelled in its cluster is charged and matched with its current values."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from hetsched.contracts.objects.allocation import Allocation, ZoneGrant
from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.contracts.objects.policy import PluginUse
from hetsched.inventory.models import Cluster, Node
from hetsched.journal.audit import SYSTEM
from hetsched.placement import dispatch
from hetsched.placement.actions import apply_changes, begin_binding, delete_former_reservations, reject
from hetsched.placement.actions.transfer import export_cluster
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.in_place import fingerprint
from hetsched.placement.models import Pod, Reservation
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.queries.replay import read_stream
from hetsched.placement.scheduler_cache import cache_of
from hetsched.policies.actions import activate, save_draft
from hetsched.policies.models import PolicyRevision
from hetsched.scheduling import worker_host
from tests.builders import PodBuilder, a_node, a_pod
from tests.situations import a_live_cluster, placing, recorded

pytestmark = pytest.mark.django_db
KEY = "default/p"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a live cluster with one node of 8 CPUs on which our pod `p` runs with one CPU."""
    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: None)
    made = a_live_cluster()
    seen(made, nodes=[a_node("n1").build()])
    seen(made, pods=[an_observed_pod(a_pod("p").cpu(1))])
    recorded(made, placing(made, "n1"))
    begin_binding(made.pk, Pod.objects.values_list("id", flat=True))
    runs(made, a_pod("p").cpu(1))
    return made


def seen(cluster: Cluster, **changes: Any) -> Any:
    return apply_changes(cluster.pk, Changes(**changes), epoch=1)


def an_observed_pod(pod: PodBuilder, scheduler: str = "hetsched", uid: str = "u1", **more: Any) -> ObservedPod:
    spec = pod.having(uid=uid, node_name=more.get("node_name", "")).build()
    return ObservedPod(spec.namespace, spec.name, spec.uid, scheduler_name=scheduler, spec=spec, **more)


def runs(cluster: Cluster, pod: PodBuilder, **more: Any) -> None:
    seen(cluster, pods=[an_observed_pod(pod, node_name="n1", phase="Running", **more)])


def decide(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decide due pods, regardless of their back-off."""
    monkeypatch.setattr(worker_host.WorkerHost, "may_decide", lambda _: True)
    Pod.objects.filter(queued=True).update(not_before=None)
    worker_host.run(cluster.pk)


def states() -> dict[str, str]:
    return dict(Pod.objects.order_by("id").values_list("name", "state"))


def assert_counts_agree(cluster: Cluster, cpu: int) -> None:
    """Check columns, reservation, cached and rebuilt state, and the invariants against the requested CPUs."""
    node = Node.objects.get()
    assert (node.requested["cpu"], Reservation.objects.get(active=True).requests["cpu"]) == (cpu, cpu)
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert int(snapshot.state.columns.field("requested")[snapshot.state.resources.index["cpu"], 0]) == cpu
        assert snapshot.state.digest() == load_state(cluster.pk).state.digest()
    assert check_invariants() == []


@pytest.mark.parametrize("cpu", [6, 20])
def test_resize_of_an_own_pod_is_charged_beyond_its_node(cluster: Cluster, cpu: int) -> None:
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert KEY in snapshot.state.placed_pods
    runs(cluster, a_pod("p").cpu(cpu))
    assert_counts_agree(cluster, 1000 * cpu)
    assert Pod.objects.get().spec.shape.request("cpu") == 1000  # the request of the decision


def test_resize_of_a_foreign_pod_is_charged(cluster: Cluster) -> None:
    seen(cluster, pods_gone=[KEY], stopped={"u1"})
    for cpu in (2, 7, 3):
        runs(cluster, a_pod("theirs").cpu(cpu), scheduler="default-scheduler", uid="u2")
        assert_counts_agree(cluster, 1000 * cpu)


def test_resize_before_the_node_exists_is_charged_with_the_node(cluster: Cluster) -> None:
    for cpu in (2, 5):
        pod = an_observed_pod(
            a_pod("early").cpu(cpu), scheduler="default-scheduler", uid="u2", node_name="n2", phase="Running"
        )
        seen(cluster, pods=[pod])
    seen(cluster, nodes=[a_node("n2").build()])
    seen(cluster, nodes=[a_node("n2").labelled(x="1").build()])
    assert Node.objects.get(name="n2").requested["cpu"] == 5000
    assert check_invariants() == []


def test_grown_pod_uses_capacity_and_a_shrunk_one_requeues_pending_pods(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(cluster, a_pod("p").cpu(6))
    seen(cluster, pods=[an_observed_pod(a_pod("q").cpu(4), uid="u2")])
    decide(cluster, monkeypatch)
    assert states() == {"p": "running", "q": "not-now"}
    assert not Pod.objects.get(name="q").queued
    runs(cluster, a_pod("p").cpu(2))
    assert Pod.objects.get(name="q").queued
    decide(cluster, monkeypatch)
    assert states()["q"] == "placed"
    assert check_invariants() == []


def test_growing_pod_requeues_placed_pods_that_are_not_bound(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    seen(cluster, pods=[an_observed_pod(a_pod("q").cpu(4), uid="u2")])
    decide(cluster, monkeypatch)
    assert states()["q"] == "placed"
    runs(cluster, a_pod("p").cpu(6))
    assert states() == {"p": "running", "q": "pending"}
    assert check_invariants() == []


def test_claim_that_is_named_during_a_refused_binding_remains_known(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen(cluster, pods=[an_observed_pod(a_pod("q").cpu(1), uid="u2")])
    decide(cluster, monkeypatch)
    row = Pod.objects.get(name="q")
    begin_binding(cluster.pk, [row.pk])
    reservation = Reservation.objects.get(pod=row)
    seen(cluster, pods=[an_observed_pod(a_pod("q").cpu(1).having(extended_claim="left"), uid="u2")])
    assert Reservation.objects.get(pod=row, active=True) == reservation  # it does not depend on the claim
    assert_cache_equals_rebuilt_state(cluster)
    reject(cluster.pk, [row.pk], reason="denied by an admission webhook")
    row.refresh_from_db()
    assert (row.state, row.spec.extended_claim) == ("pending", "left")
    assert_cache_equals_rebuilt_state(cluster)


HOST = "kubernetes.io/hostname"


def test_new_label_of_a_running_pod_requeues_pods_with_affinity(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = a_pod("waits").near(HOST, x="1")
    seen(cluster, pods=[an_observed_pod(waits, uid="u2")])
    seen(cluster, pods=[an_observed_pod(a_pod("large").cpu(64), uid="u4")])
    decide(cluster, monkeypatch)
    assert states() == {"p": "running", "waits": "not-now", "large": "never-fits"}
    runs(cluster, a_pod("p").cpu(1).labelled(x="1"))
    queued = Pod.objects.filter(queued=True).values_list("name", flat=True)
    assert list(queued) == ["waits"]  # capacity did not change
    decide(cluster, monkeypatch)
    assert states()["waits"] == "placed"
    after = a_pod("after").near(HOST, x="1")
    seen(cluster, pods=[an_observed_pod(after, uid="u3")])
    decide(cluster, monkeypatch)
    assert states()["after"] == "placed"
    assert_cache_equals_rebuilt_state(cluster)


def test_removed_label_of_a_running_pod_requeues_pods_with_anti_affinity(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(cluster, a_pod("p").cpu(1).labelled(x="1"))
    seen(cluster, pods=[an_observed_pod(a_pod("waits").away_from(HOST, x="1"), uid="u2")])
    decide(cluster, monkeypatch)
    assert states()["waits"] == "not-now"
    runs(cluster, a_pod("p").cpu(1).labelled(x="2"))
    decide(cluster, monkeypatch)
    assert states()["waits"] == "placed"
    assert_cache_equals_rebuilt_state(cluster)


def test_removed_label_of_a_running_pod_changes_topology_spread(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen(cluster, nodes=[a_node("n2").tainted("only", "theirs").build()])
    runs(cluster, a_pod("p").cpu(1).labelled(x="1"))
    waits = a_pod("waits").labelled(x="1").spread(HOST, x="1")
    seen(cluster, pods=[an_observed_pod(waits, uid="u2")])
    decide(cluster, monkeypatch)
    assert states()["waits"] == "not-now"
    runs(cluster, a_pod("p").cpu(1))
    decide(cluster, monkeypatch)
    assert states()["waits"] == "placed"


def test_terminating_pod_is_ignored_by_topology_spread(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    seen(cluster, nodes=[a_node("n2").tainted("only", "theirs").build()])
    runs(cluster, a_pod("p").cpu(1).labelled(x="1"))
    seen(cluster, pods=[an_observed_pod(a_pod("waits").labelled(x="1").spread(HOST, x="1"), uid="u2")])
    seen(cluster, pods=[an_observed_pod(a_pod("beside").cpu(8), uid="u3")])
    decide(cluster, monkeypatch)
    assert states() == {"p": "running", "waits": "not-now", "beside": "not-now"}
    runs(cluster, a_pod("p").cpu(1).labelled(x="1").having(terminating=True), deleting=True)
    decide(cluster, monkeypatch)
    assert states() == {"p": "running", "waits": "placed", "beside": "not-now"}  # its CPU is still reserved
    assert_cache_equals_rebuilt_state(cluster)


def assert_cache_equals_rebuilt_state(cluster: Cluster) -> None:
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert snapshot.state.digest() == load_state(cluster.pk).state.digest()
    assert check_invariants() == []


def test_irrelevant_update_causes_no_queries(cluster: Cluster) -> None:
    before = Reservation.objects.get().pk
    with CaptureQueriesContext(connection) as queries:
        runs(cluster, a_pod("p").cpu(1))
    assert Reservation.objects.get().pk == before
    texts = [query["sql"] for query in queries.captured_queries]
    assert not [sql for sql in texts if "placement_reservation" in sql or sql.startswith('UPDATE "placement_pod"')]
    assert not [sql for sql in texts if '"placement_pod"."spec"' in sql]


def test_fingerprint_equals_that_of_earlier_versions() -> None:
    # A different value would make the first write after an upgrade compare all pods of the cluster.
    spec = a_pod("p").cpu(1).having(labels={"app": "p"}, controller="ReplicaSet/p", grace_seconds=30).build()
    assert fingerprint(spec) == "c412ac6c9fa9e971"


def test_pod_without_a_fingerprint_is_compared_once(cluster: Cluster) -> None:
    Pod.objects.update(fingerprint="")
    runs(cluster, a_pod("p").cpu(1))
    assert Reservation.objects.count() == 1
    assert Pod.objects.get().fingerprint


def test_past_state_has_the_past_request(cluster: Cluster) -> None:
    then = load_state(cluster.pk)
    runs(cluster, a_pod("p").cpu(6))
    assert load_state(cluster.pk, at_revision=then.revision).state.digest() == then.state.digest()


def test_export_has_the_current_request(cluster: Cluster) -> None:
    runs(cluster, a_pod("p").cpu(6).labelled(x="1"))
    (pod,) = export_cluster(cluster).running
    assert (pod.shape.request("cpu"), pod.labels) == (6000, {"x": "1"})


def test_released_resources_of_a_resized_pod_are_its_last_ones(cluster: Cluster) -> None:
    runs(cluster, a_pod("p").cpu(6))
    seen(cluster, pods_gone=[KEY])
    assert_counts_agree(cluster, 6000)


def test_zone_share_grows_with_its_pod() -> None:
    from hetsched.placement.reservation_ledger import resized

    before, now = a_pod("p").cpu(2).build(), a_pod("p").cpu(6).build()
    allocation = Allocation(
        zones=(ZoneGrant("node-0", cpu_millis=1500, memory_mib=512), ZoneGrant("node-1", cpu_millis=500))
    )
    assert [zone.cpu_millis for zone in resized(allocation, before, now).zones] == [4500, 1500]
    exclusive = Allocation(zones=(ZoneGrant("node-0", cpus="0-1", cpu_millis=2000),), cpu_policy="exclusive")
    assert resized(exclusive, before, now) is exclusive


def test_requeued_pod_has_its_current_request(cluster: Cluster) -> None:
    seen(cluster, pods=[an_observed_pod(a_pod("q").cpu(4), uid="u2")])
    recorded(cluster, placing(cluster, "n1"))
    seen(cluster, pods=[an_observed_pod(a_pod("q").cpu(4).labelled(x="1"), uid="u2")])
    runs(cluster, a_pod("p").cpu(6))
    back = Pod.objects.get(name="q")
    assert (back.state, back.spec.labels) == ("pending", {"x": "1"})


def test_previous_resources_of_a_pod_are_deleted_in_the_end(cluster: Cluster) -> None:
    for value in ("1", "2", "3"):
        runs(cluster, a_pod("p").cpu(1).labelled(x=value))
    assert Reservation.objects.count() == 4
    with cache_of(cluster.pk).locked_snapshot():
        pass
    assert delete_former_reservations(cluster.pk, released_before=timezone.now() - timedelta(hours=1)) == 0
    assert delete_former_reservations(cluster.pk, released_before=timezone.now() + timedelta(seconds=1)) == 3
    assert Reservation.objects.get().active
    assert_counts_agree(cluster, 1000)


def test_replay_keeps_placements_of_pods_changed_in_place(cluster: Cluster) -> None:
    runs(cluster, a_pod("p").cpu(6))
    seen(cluster, pods=[an_observed_pod(a_pod("q"), uid="u2")])
    recorded(cluster, placing(cluster, "n1"))
    stream = read_stream(cluster, 10)
    assert (len(stream.rows), stream.departures, stream.foreign) == (2, 0, 0)
    (entry,) = stream.events[0].entries  # type: ignore[union-attr]
    assert entry.pod.shape.request("cpu") == 1000  # the request of the decision


@pytest.mark.parametrize("low", ["0", "1m"])
def test_zone_shares_return_after_a_resize_to_little_and_back(low: str) -> None:
    from hetsched.placement.reservation_ledger import resized

    high, little = a_pod("p").cpu(2).build(), a_pod("p").cpu(low).build()
    allocation = Allocation(
        zones=(ZoneGrant("node-0", cpu_millis=1500, memory_mib=512), ZoneGrant("node-1", cpu_millis=500))
    )
    between = resized(allocation, high, little)
    again = resized(between, little, high)
    assert sum(zone.cpu_millis for zone in between.zones) == little.shape.request("cpu")
    assert sum(zone.cpu_millis for zone in again.zones) == 2000


@pytest.mark.parametrize(("counts", "shares"), [(True, [512, 512]), (False, [0, 0])])
def test_zone_memory_returns_after_a_resize_to_0_if_the_policy_counts_it(
    cluster: Cluster, *, counts: bool, shares: list[int]
) -> None:
    """Regression: shares of 0 MiB stayed 0 when the pod requested 1 GiB again."""
    spec = PolicyRevision.objects.get(policy__name="hetsched", state="active").spec
    uses = (use for use in spec.plugins if use.name != "numa-fit")
    plugins = (*uses, PluginUse("numa-fit", params={"memory": counts}))
    draft = save_draft(msgspec.structs.replace(spec, plugins=plugins), actor=SYSTEM)
    activate("hetsched", draft.version, actor=SYSTEM, reason="zone memory")
    high = [768, 256] if counts else [0, 0]
    zones = tuple(ZoneGrant(f"node-{number}", cpu_millis=500, memory_mib=mib) for number, mib in enumerate(high))
    Reservation.objects.filter(active=True).update(allocation=Allocation(zones=zones))
    for memory, expected in (("0", [0, 0]), ("1Gi", shares)):
        runs(cluster, a_pod("p").cpu(1).memory(memory))
        held = Reservation.objects.get(active=True).allocation.zones
        assert [zone.memory_mib for zone in held] == expected
    assert [zone.cpu_millis for zone in held] == [500, 500]
