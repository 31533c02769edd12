"""Nodes whose Ready condition flaps: their pods stay, and each change is one write."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.contracts.objects.observed import Changes
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection, Node
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import apply_changes, begin_binding, confirm, start
from hetsched.placement.models import Decision, Pod, Reservation
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import worker_host
from tests.builders import a_node, a_pod
from tests.builtins import builtin_policies
from tests.situations import submitted

pytestmark = pytest.mark.django_db
NODES, FLAPPING, TURNS, PODS = 10, 2, 10, 30


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a live cluster of ten nodes of 8 CPUs with thirty running pods."""
    monkeypatch.setattr(worker_host, "is_synced", lambda _: True)
    builtin_policies()
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made, follower_epoch=1)
    _seen(made, nodes=[a_node(f"n{number}").build() for number in range(NODES)])
    submitted(made, *[a_pod(f"p{number}").cpu("500m") for number in range(PODS)])
    worker_host.run(made.pk)
    ids = list(Pod.objects.values_list("id", flat=True))
    for step in (begin_binding, confirm, start):
        step(made.pk, ids)
    return made


def _seen(cluster: Cluster, **changes: Any) -> None:
    apply_changes(cluster.pk, Changes(**changes), epoch=1)


def _held() -> list[tuple[str, str]]:
    return sorted(Reservation.objects.filter(active=True).values_list("pod__name", "node__name"))


def test_pods_of_flapping_nodes_stay_and_are_decided_once(cluster: Cluster) -> None:
    before, revision = _held(), Cluster.objects.get().revision
    assert len(before) == PODS
    for turn in range(TURNS):
        nodes = [a_node(f"n{number}") for number in range(FLAPPING)]
        _seen(cluster, nodes=[(node if turn % 2 else node.not_ready()).build() for node in nodes])
        worker_host.run(cluster.pk)
        assert check_invariants() == []
    assert _held() == before
    assert set(Pod.objects.values_list("state", flat=True)) == {"running"}
    assert Decision.objects.count() == PODS
    assert Cluster.objects.get().revision == revision + TURNS
    assert Node.objects.filter(report__isnull=False).count() == NODES
