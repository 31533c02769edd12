"""Measured use on a live cluster: a sample contains the reservations made before it, which are not counted again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import time_machine

from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection, Node
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import apply_changes
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.scheduler_cache import cache_of
from tests.builders import a_node, a_pod
from tests.builtins import builtin_policies

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def clock() -> Iterator[None]:
    """Freeze the clock at the time of the first samples of this file."""
    with time_machine.travel("2026-11-21T10:00:15Z", tick=False):
        yield


@pytest.fixture
def cluster() -> Cluster:
    """Return a live cluster with two nodes of 8 CPUs without samples."""
    builtin_policies()
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made, follower_epoch=1)
    seen(made, nodes=[a_node("n1").build(), a_node("n2").build()])
    return made


def seen(cluster: Cluster, **changes: Any) -> None:
    apply_changes(cluster.pk, Changes(**changes), epoch=1)


def running(name: str, cpu: int) -> ObservedPod:
    spec = a_pod(name).cpu(cpu).having(uid=name, node_name="n1").build()
    return ObservedPod("default", name, name, node_name="n1", phase="Running", spec=spec)


def sampled(cpu: str, at: str) -> Any:
    return a_node("n1").using(at, cpu=cpu).build()


def used(cluster: Cluster) -> int:
    """Return the millicores currently in use on n1; a cached and a reloaded state have to agree."""
    with cache_of(cluster.pk).locked_snapshot() as loaded:
        usage = loaded.state.report_now(0).usage
    folded = load_state(cluster.pk).state.report_now(0).usage
    assert usage is not None
    assert folded is not None
    assert usage.amounts["cpu"] == folded.amounts["cpu"]
    return folded.amounts["cpu"]


def test_pod_running_at_the_sample_is_included(cluster: Cluster) -> None:
    seen(cluster, pods=[running("early", 2)])
    seen(cluster, nodes=[sampled("1500m", "2026-11-21T10:00:00Z")])
    assert used(cluster) == 1500


def test_pod_placed_since_the_sample_is_added(cluster: Cluster) -> None:
    seen(cluster, pods=[running("early", 2)])
    seen(cluster, nodes=[sampled("1500m", "2026-11-21T10:00:00Z")])
    seen(cluster, pods=[running("late", 1)])
    # 1500 measured + 1000 of expected use of the late pod
    assert used(cluster) == 2500


def test_pod_ended_since_the_sample_is_subtracted(cluster: Cluster) -> None:
    seen(cluster, pods=[running("early", 1)])
    seen(cluster, nodes=[sampled("1500m", "2026-11-21T10:00:00Z")])
    seen(cluster, pods_gone=["default/early"], stopped={"early"})
    # 1500 measured - 1000 of expected use of the early pod
    assert used(cluster) == 500


def test_each_new_sample_starts_from_zero(cluster: Cluster) -> None:
    seen(cluster, nodes=[sampled("500m", "2026-11-21T10:00:00Z")])
    seen(cluster, pods=[running("one", 1), running("two", 1)])
    seen(cluster, pods_gone=["default/two"], stopped={"two"})
    seen(cluster, nodes=[sampled("1400m", "2026-11-21T10:00:15Z")])
    assert used(cluster) == 1400


def test_sample_of_one_node_does_not_affect_others(cluster: Cluster) -> None:
    seen(cluster, nodes=[sampled("500m", "2026-11-21T10:00:00Z")])
    seen(cluster, pods=[running("one", 1)])
    seen(cluster, nodes=[a_node("n2").using("2026-11-21T10:00:15Z", cpu="100m").build()])
    assert used(cluster) == 1500


def test_facts_without_a_new_sample_keep_the_previous_sample(cluster: Cluster) -> None:
    seen(cluster, nodes=[sampled("500m", "2026-11-21T10:00:00Z")])
    before = Node.objects.get(name="n1").sampled_revision
    seen(cluster, pods=[running("one", 1)])
    at = "2026-11-21T10:00:00Z"
    seen(cluster, nodes=[a_node("n1").using(at, cpu="500m").labelled(changed="yes").build()])
    assert Node.objects.get(name="n1").sampled_revision == before
    assert used(cluster) == 1500
