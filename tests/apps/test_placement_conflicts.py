"""Conflicts of the transaction that places arriving pods, with exact revisions, epochs and policy versions."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest
from django.db import connection
from django.db.models import Max

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.allocation import Allocation, CardGrant
from hetsched.contracts.objects.observed import Changes
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.node_loads import Conflict, Contradiction
from hetsched.placement import due_effects
from hetsched.placement.actions import apply_changes
from hetsched.placement.actions.submissions import build_pod_rows
from hetsched.placement.actions.watch.placed_arrivals import PlacedArrivals, record_placed_arrivals
from hetsched.placement.models import Decision, Pod, Reservation, Workload
from hetsched.placement.models.reservations import ReservedCard
from hetsched.placement.scheduling_queue.active_queue import PendingPod
from hetsched.placement.scheduling_result import Result
from hetsched.policies.effective import Chooser
from hetsched.policies.models import Policy
from tests.builders import a_node, a_pod
from tests.situations import a_live_cluster, acquire_lease

pytestmark = pytest.mark.django_db
_MODELS = (Workload, Pod, Decision, Reservation, ReservedCard)


class Placement(NamedTuple):
    """A pod, its GPU, and the version of the policy that placed it."""

    name: str
    card: int
    milli: int = 1000
    version: int = 1


CONTRADICTIONS = {
    "name": Placement("first", 2),
    "reserved GPU": Placement("p", 0),
    "overfull GPU": Placement("p", 1, 500),
}


def a_cluster_with_a_placed_pod() -> Cluster:
    """Return a live cluster of one node with four GPUs, on which the pod `first` uses GPU 0 and half of GPU 1."""
    cluster = a_live_cluster()
    apply_changes(cluster.pk, Changes(nodes=[a_node("n1").gpus(4).build()]), epoch=1)
    acquire_lease(cluster)
    cluster.refresh_from_db()
    commit(cluster, Placement("first", 0))
    cluster.refresh_from_db()
    commit(cluster, Placement("second", 1, 600))
    cluster.refresh_from_db()
    return cluster


def commit(cluster: Cluster, *placements: Placement, **changed: Any) -> PlacedArrivals:
    """Commit placements that were decided on the given columns of the cluster."""
    specs = [a_pod(placement.name).cpu("100m").gpu(milli=placement.milli).build() for placement in placements]
    rows = build_pod_rows(cluster, specs, "", None, Pod.WATCHED, Chooser(cluster))
    node, results = Node.objects.get(cluster=cluster), []
    for number, (row, placement) in enumerate(zip(rows, placements, strict=True), start=1):
        pending = PendingPod(-number, None, row.spec, row.policy, row.policy_rule, row.state, 0, None, row.uid)
        grant = CardGrant(placement.card, placement.milli, 1024)
        results.append(
            Result(
                pending, Verdict.PLACED, "placed", "hetsched", placement.version, node.pk, node.name,
                Allocation(gpus=(grant,)), 50.0,
            )
        )  # fmt: skip
    columns = {"revision": cluster.revision, "epoch": cluster.leader_epoch, "snapshot": "digest", **changed}
    return record_placed_arrivals(cluster.pk, list(zip(rows, results, strict=True)), **columns)


def stored(cluster: Cluster) -> tuple[object, ...]:
    """Return the revision of the cluster, the number of rows, and the placements whose effects are due."""
    connection.check_constraints()
    counts = [model._default_manager.count() for model in _MODELS]
    known = due_effects._committed.get(cluster.pk)
    return Cluster.objects.get(pk=cluster.pk).revision, counts, known and msgspec.structs.asdict(known)


@pytest.mark.parametrize("others", [0, 2])
def test_revision_epoch_and_policy_of_the_decision_are_current(others: int) -> None:
    cluster = a_cluster_with_a_placed_pod()
    before = stored(cluster)
    more = [Placement(f"other-{number}", 2 + number) for number in range(others)]
    for columns in (
        {"revision": cluster.revision - 1},
        {"revision": cluster.revision + 1},
        {"epoch": cluster.leader_epoch - 1},
        {"epoch": cluster.leader_epoch + 1},
    ):
        with pytest.raises(Conflict, match="no longer at revision") as refusal:
            commit(cluster, *more, Placement("p", 1, 400), **columns)
        assert not isinstance(refusal.value, Contradiction)
    with pytest.raises(Conflict, match="policy hetsched now has another active version"):
        commit(cluster, *more, Placement("p", 1, 400, version=2))
    Policy.objects.filter(name="hetsched").update(active_version=2)
    with pytest.raises(Conflict, match="policy hetsched now has another active version"):
        commit(cluster, *more, Placement("p", 1, 400))
    assert stored(cluster) == before
    assert commit(cluster, Placement("p", 1, 400, version=2)).revision == cluster.revision + 1


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("contradiction", CONTRADICTIONS)
def test_name_and_resources_of_a_live_pod_are_a_contradiction(contradiction: str, others: int) -> None:
    cluster = a_cluster_with_a_placed_pod()
    before = stored(cluster)
    more = [Placement(f"other-{number}", 2 + number, 100) for number in range(others)]
    with pytest.raises(Contradiction) as refusal:
        commit(cluster, *more, CONTRADICTIONS[contradiction])
    assert refusal.value.pods == others + 1
    assert stored(cluster) == before


@pytest.mark.parametrize("count", [1, 3, 30])
def test_placed_pods_have_the_ids_of_their_rows(count: int) -> None:
    cluster = a_cluster_with_a_placed_pod()
    last = Pod.objects.aggregate(last=Max("id"))["last"]
    found = commit(cluster, *(Placement(f"p{number}", 2, 20) for number in range(count)))
    ids = [result.waiting.pod_id for result in found.results]
    rows = Pod.objects.filter(id__gt=last).order_by("id")
    assert list(rows.values_list("id", "name")) == [(pk, f"p{number}") for number, pk in enumerate(ids)]
    columns = ("workload_id", "decisions__workload_id", "decisions__pod_name", "reservations__revision")
    for result, values in zip(found.results, rows.values_list(*columns), strict=True):
        workload = result.waiting.workload_id
        assert values == (workload, workload, result.waiting.spec.name, found.revision)
    assert set(rows.values_list("reservations__cards__milli", flat=True)) == {20}
    assert rows.count() == count  # each pod has one decision and one reservation
