"""The page of a preempted pod names its preemptor, the decision, and the time."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from hetsched.placement.models import Pod
from hetsched.placement.queries.redaction import Redaction
from hetsched.placement.queries.why import preemptions_of
from tests.builders import a_node, a_pod
from tests.builtins import builtin_policies
from tests.situations import a_cluster, submitted
from workers.schedule import run

from .test_balance_page import words


@pytest.fixture
def preempted(db: None) -> Pod:
    """Return a pod that ran on the only node until it was preempted by a pod of another namespace."""
    builtin_policies()
    cluster = a_cluster(a_node("n1").cpu(4))
    submitted(cluster, a_pod("low", "team").cpu(4))
    run(cluster.pk)
    submitted(cluster, a_pod("urgent", "ops").cpu(4).priority(1000))
    run(cluster.pk)
    assert Pod.objects.get(name="urgent").state == "placed"
    return Pod.objects.get(name="low")


def test_preemptor_of_a_pod_is_named_with_its_decision(viewer: Client, preempted: Pod) -> None:
    urgent = Pod.objects.get(name="urgent")
    for address in (reverse("pod-why", args=[preempted.pk]), reverse("workload", args=[preempted.workload_id])):
        assert "Preempted by ops/urgent" in words(viewer, address), address
        page = viewer.get(address).content.decode()
        assert f'href="/decisions/{urgent.decision_id}/"' in page
        assert f'href="{reverse("pod-why", args=[urgent.pk])}"' in page


def test_preemptor_of_a_pod_is_kept_after_the_next_decision(viewer: Client, preempted: Pod) -> None:
    run(preempted.cluster_id)
    preempted.refresh_from_db()
    assert preempted.message == ""
    assert "Preempted by ops/urgent" in words(viewer, reverse("pod-why", args=[preempted.pk]))


def test_out_of_scope_preemptor_is_hidden(preempted: Pod) -> None:
    (row,) = Redaction(frozenset({"team"})).preemptions(preemptions_of([preempted]))
    assert (row.pod_id, row.decision, row.node) == (None, None, "n1")
    assert "urgent" not in row.pod
