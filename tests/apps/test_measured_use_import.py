"""Measured use of pods is imported with a cluster, is learnt from, and is exported with it."""

from __future__ import annotations

import pytest
from django.utils import timezone

from hetsched.adapters.files import parse_cluster
from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.contracts.objects.cluster import ClusterContent, PodUsage
from hetsched.contracts.times import rfc3339
from hetsched.contracts.units import CPU
from hetsched.inventory.models import Cluster
from hetsched.placement.actions import export_cluster, import_cluster, release
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.lifecycle import State
from hetsched.placement.scheduler_cache import cache_of
from tests.builders import PodBuilder, a_node, a_pod
from tests.builtins import builtin_policies
from tests.situations import ALICE, placed

pytestmark = pytest.mark.django_db

SAMPLES = tuple(PodUsage("default", f"web-{i}", "Deployment/web", {CPU: 2500}) for i in range(6))


def a_measured_cluster() -> Cluster:
    builtin_policies()
    nodes = (a_node("n1").using(rfc3339(timezone.now()), cpu="1").build(),)
    return import_cluster(ClusterContent(nodes=nodes, pod_usages=SAMPLES), name="fleet", actor=ALICE)


def a_web_pod(name: str) -> PodBuilder:
    return a_pod(name).cpu(1).having(controller="Deployment/web")


def used_cpu(cluster: Cluster) -> int:
    return int(load_state(cluster.pk).state.columns.field("used")[0, 0])


def test_expected_use_follows_earlier_pods() -> None:
    # 1 CPU measured, + 2.5 learnt, + 1 requested by a pod without a workload
    cluster = a_measured_cluster()
    placed(cluster, "n1", a_web_pod("a"), a_pod("bare").cpu(1))
    assert used_cpu(cluster) == 4500


def test_cached_state_has_the_same_expected_use() -> None:
    cluster = a_measured_cluster()
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        first = snapshot.state
    (pod,) = placed(cluster, "n1", a_web_pod("a"))
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert snapshot.state is first
        assert snapshot.state.digest() == load_state(cluster.pk).state.digest()
        assert snapshot.state.columns.field("used")[0, 0] == 3500
    release(cluster.pk, [pod.pk], to=State.SUCCEEDED, reason="done")
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert snapshot.state.columns.field("used")[0, 0] == 1000


def test_export_contains_current_use() -> None:
    cluster = a_measured_cluster()
    placed(cluster, "n1", a_web_pod("a"))
    text = write_cluster(export_cluster(Cluster.objects.get(pk=cluster.pk)))
    copy = import_cluster(parse_cluster([("export.json", text)]), name="copy", actor=ALICE)
    assert copy.definitions.pod_usages == SAMPLES
    assert used_cpu(copy) == used_cpu(cluster) == 3500
    placed(copy, "n1", a_web_pod("b"))
    assert used_cpu(copy) == 6000


def test_sample_is_never_negative() -> None:
    # The running pod is expected to use 4 of the 1 CPU that was measured; after its deletion nothing is used.
    builtin_policies()
    running = a_pod("old").expecting(cpu="4").running_on("n1").build()
    nodes = (a_node("n1").using(rfc3339(timezone.now()), cpu="1").build(),)
    cluster = import_cluster(ClusterContent(nodes=nodes, running=(running,)), name="fleet", actor=ALICE)
    state = load_state(cluster.pk).state
    state.forget("default/old")
    usage = state.report_now(0).usage
    assert usage is not None
    assert usage.amounts[CPU] == 0
