"""The scheduler cache equals a rebuilt state after any sequence of changes."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from hetsched.contracts.objects.allocation import Allocation, DeviceGrant, VolumeGrant
from hetsched.contracts.objects.cluster import ClusterContent, DisruptionBudget
from hetsched.contracts.objects.devices import AllocatedDevice, DeviceId, Devices, ResourceClaim
from hetsched.contracts.objects.observed import Changes
from hetsched.contracts.objects.storage import PersistentVolume, Storage, VolumeClaim
from hetsched.contracts.objects.workload import ClaimRequest, ClaimUse, DeviceUse
from hetsched.engine.cluster.state import ClusterState
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.placement.actions import apply_changes
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import Pod, Reservation
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.scheduler_cache import SchedulerCache, cache_of
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, placed
from tests.walk import Walk

pytestmark = pytest.mark.django_db
STEPS = 40


def _columns(state: ClusterState) -> dict[str, np.ndarray]:
    """Return every field by name, resources by their own names: a state may have resources that no node has."""
    known = {f"load {name}": state.columns.field(name) for name in state.columns.layout.load if name != "requested"}
    requested = state.columns.field("requested")
    return known | {f"requested {name}": requested[row] for name, row in state.resources.index.items()}


@pytest.mark.parametrize("seed", range(3))
def test_warm_equals_rebuilt_at_every_step_of_a_walk(seed: int) -> None:
    walk = Walk(seed)
    for number in range(STEPS):
        happened = walk.step()
        with cache_of(walk.cluster.pk).locked_snapshot() as snapshot:
            rebuilt = load_state(walk.cluster.pk)
            where = f"seed {seed}, step {number}, {happened}"
            assert snapshot.revision == rebuilt.revision, where
            assert snapshot.state.digest() == rebuilt.state.digest(), where
            ours, fresh = _columns(snapshot.state), _columns(rebuilt.state)
            for name in ours.keys() & fresh.keys():
                np.testing.assert_array_equal(ours[name], fresh[name], err_msg=f"{where}: {name}")
            for name in ours.keys() ^ fresh.keys():
                assert not (ours | fresh)[name].any(), f"{where}: {name}"
        assert check_invariants() == [], where


def test_cache_applies_missed_reservations_and_releases_without_a_rebuild(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hetsched.placement import scheduler_cache
    from hetsched.placement.actions import release
    from hetsched.placement.lifecycle import State

    cluster = a_cluster(a_node("n1"))
    removed = placed(cluster, "n1", a_pod("gone"))
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert set(snapshot.state.placed_pods) == {"default/gone"}
    placed(cluster, "n1", a_pod("new"))
    both = placed(cluster, "n1", a_pod("came-and-went"))
    release(cluster.pk, [removed[0].pk, both[0].pk], to=State.SUCCEEDED, reason="done")
    monkeypatch.setattr(scheduler_cache, "load_state", None)
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert set(snapshot.state.placed_pods) == {"default/new"}


def test_concurrent_changes_during_a_batch_are_applied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from hetsched.placement import scheduler_cache
    from hetsched.placement.actions import record, release
    from hetsched.placement.lifecycle import State
    from tests.situations import placing, submitted

    cluster = a_cluster(a_node("n1"))
    old = placed(cluster, "n1", a_pod("old"))
    submitted(cluster, a_pod("new"))
    copy = cache_of(cluster.pk)
    with copy.locked_snapshot() as snapshot:
        results = placing(cluster, "n1")
        for result in results:
            snapshot.state.assume(snapshot.state.compile(result.waiting.spec), 0)
        release(cluster.pk, [old[0].pk], to=State.SUCCEEDED, reason="done")
        copy.mark_committed(record(cluster.pk, results, revision=snapshot.revision, epoch=0, snapshot=""))
    rebuilt = load_state(cluster.pk)
    monkeypatch.setattr(scheduler_cache, "load_state", None)
    with copy.locked_snapshot() as snapshot:
        assert set(snapshot.state.placed_pods) == {"default/new"}
        assert snapshot.state.digest() == rebuilt.state.digest()
        np.testing.assert_array_equal(snapshot.state.columns.field("used"), rebuilt.state.columns.field("used"))


def test_node_facts_are_applied_without_a_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    from hetsched.inventory.actions import cordon
    from hetsched.placement import scheduler_cache
    from tests.situations import ALICE

    cluster = a_cluster(a_node("n1"), a_node("n2"))
    with cache_of(cluster.pk).locked_snapshot():
        pass
    cordon(cluster, "n2", actor=ALICE, reason="repair")
    rebuilt = load_state(cluster.pk)
    monkeypatch.setattr(scheduler_cache, "load_state", None)
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert snapshot.state.columns.field("unschedulable").tolist() == [False, True]
        assert snapshot.state.digest() == rebuilt.state.digest()


def test_recreated_pod_is_charged_once() -> None:
    from hetsched.placement.actions import cancel
    from tests.situations import ALICE, placing, recorded, submitted

    cluster = a_cluster(a_node("n1"), a_node("n2"))
    workload = submitted(cluster, a_pod("p"))
    recorded(cluster, placing(cluster, "n1"))
    with cache_of(cluster.pk).locked_snapshot():
        pass
    cancel(workload, actor=ALICE, reason="moving")
    submitted(cluster, a_pod("p"))
    recorded(cluster, placing(cluster, "n2"))
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        placed = snapshot.state.placed_pods["default/p"]
        assert snapshot.state.reports[placed.row].name == "n2"


def test_past_state_can_be_rebuilt() -> None:
    from hetsched.inventory.models import Cluster
    from hetsched.placement.actions import release
    from hetsched.placement.lifecycle import State

    cluster = a_cluster(a_node("n1"))
    first = placed(cluster, "n1", a_pod("first"))
    revision = Cluster.objects.get().revision
    digest = load_state(cluster.pk).state.digest()
    placed(cluster, "n1", a_pod("second"))
    release(cluster.pk, [first[0].pk], to=State.SUCCEEDED, reason="done")
    assert load_state(cluster.pk).state.digest() != digest
    assert load_state(cluster.pk, at_revision=revision).state.digest() == digest


def test_gang_backoff_survives_a_rebuild() -> None:
    copy = SchedulerCache(a_cluster(a_node("n1")).pk)
    with copy.locked_snapshot() as first:
        first.state.gangs.backoff_until["default/team"] = 60.0
    copy.invalidate()
    with copy.locked_snapshot() as again:
        assert again.state is not first.state
        assert again.state.gangs.backoff_until == {"default/team": 60.0}


def test_definitions_are_applied_without_a_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    from hetsched.placement import scheduler_cache

    grant = DeviceGrant("gpu", "", "gpu", DeviceId("gpu.example.com", "n1", "d0"))
    cluster = a_cluster(a_node("n1"))
    Cluster.objects.filter(pk=cluster.pk).update(kind=ClusterKind.KUBERNETES)
    Connection.objects.create(cluster=cluster, follower_epoch=1)
    (pod,) = placed(cluster, "n1", a_pod("p"))
    shape = msgspec.structs.replace(pod.spec.shape, claims=(ClaimUse("data"),), devices=(DeviceUse("gpu", "gpu"),))
    Pod.objects.filter(pk=pod.pk).update(spec=msgspec.structs.replace(pod.spec, shape=shape))
    Reservation.objects.filter(pod=pod).update(
        allocation=Allocation(volumes=(VolumeGrant("data", "disk"),), devices=(grant,))
    )
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert "default/data" in snapshot.state.volumes.users
        snapshot.state.digest()
    content = ClusterContent(
        storage=Storage(
            volumes={"disk": PersistentVolume("disk", driver="csi", handle="h")},
            claims={"default/data": VolumeClaim("default", "data", ClaimRequest(), volume="disk")},
        ),
        devices=Devices(
            claims={"default/gpu": ResourceClaim("default", "gpu", allocated=(AllocatedDevice(grant.device),))}
        ),
        budgets=(DisruptionBudget("default", "some"),),
    )
    content = msgspec.structs.replace(content, namespaces={"other": {"a": "b"}})
    apply_changes(cluster.pk, Changes(definitions=content), epoch=1)
    rebuilt = load_state(cluster.pk)
    monkeypatch.setattr(scheduler_cache, "load_state", None)
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert snapshot.state.digest() == rebuilt.state.digest()
        assert snapshot.state.volumes.attached == rebuilt.state.volumes.attached == {("csi", "h"): {0: 1}}
        assert snapshot.state.volumes.users == rebuilt.state.volumes.users
        assert snapshot.state.devices.promised == rebuilt.state.devices.promised == {"default/gpu": [grant]}
        assert snapshot.state.budgets == rebuilt.state.budgets
        assert snapshot.state.namespaces == rebuilt.state.namespaces == {"other": {"a": "b"}}
