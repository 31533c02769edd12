"""Namespaces share a batch if more pods are due than fit into it: a flood delays others by one batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.inventory.models import Cluster
from hetsched.placement.models import Pod
from hetsched.placement.scheduling_queue.active_queue import first_active_pods
from hetsched.policies.actions import activate, save_draft
from tests.builders import a_node, a_pod
from tests.situations import ALICE, a_cluster, submitted
from workers.schedule import run


@pytest.fixture
def cluster(db: None) -> Cluster:
    """Return a cluster with one node of 8 CPUs."""
    made = a_cluster(a_node("n1").cpu(8))
    spec = PolicySpec("hetsched", tuple(PluginUse(name) for name in ("priority-sort", "resource-fit")))
    activate("hetsched", save_draft(spec, actor=ALICE).version, actor=ALICE, reason="test")
    return made


def fill(cluster: Cluster, namespace: str, count: int, *, priority: int = 0, cpu: str = "900") -> None:
    pods = [a_pod(f"p{number}", namespace).cpu(cpu) for number in range(count)]
    submitted(cluster, *pods, priority=priority)


def shares(cluster: Any, limit: int) -> dict[str, int]:
    return dict(Counter(pod.spec.namespace for pod in first_active_pods(cluster.pk, None, limit)))


@pytest.fixture
def flooded(cluster: Any) -> Any:
    fill(cluster, "flood", 40)
    fill(cluster, "small", 2)
    fill(cluster, "other", 30)
    return cluster


def test_namespaces_share_a_batch(flooded: Any) -> None:
    # 12 places: both pods of the small namespace, and five pods of each of the two others.
    assert shares(flooded, 12) == {"small": 2, "flood": 5, "other": 5}


def test_pods_of_one_batch_keep_the_order_of_submission(flooded: Any) -> None:
    found = [pod.pod_id for pod in first_active_pods(flooded.pk, None, 100)]
    assert found == sorted(found)
    assert len(found) == 72


def test_priority_precedes_namespace_shares(flooded: Any) -> None:
    fill(flooded, "urgent", 10, priority=5)
    assert shares(flooded, 12) == {"urgent": 10, "flood": 1, "small": 1}


def test_batch_keeps_the_queue_order(flooded: Any) -> None:
    found = [pod.pod_id for pod in first_active_pods(flooded.pk, None, 12)]
    assert found == sorted(found)


def test_pod_behind_a_never_fitting_flood_is_in_the_first_batch(cluster: Any, settings: Any) -> None:
    settings.HETSCHED_BATCH = 10
    fill(cluster, "flood", 40)
    fill(cluster, "victim", 1, cpu="1")
    run(cluster.pk)
    decided = list(Pod.objects.order_by("decision_id").values_list("namespace", flat=True))
    assert "victim" in decided[:10]
    assert Pod.objects.get(namespace="victim").state == "placed"
