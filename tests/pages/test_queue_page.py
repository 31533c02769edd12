"""The queue page shows pending pods with their position, reason and next attempt."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from hetsched.inventory.models import Cluster
from hetsched.placement.models import Pod
from hetsched.placement.queries.pending_order import list_queue
from tests.builders import a_pod
from tests.pages.test_node_agent_reports import words
from tests.situations import submitted


@pytest.fixture
def waiting(cluster: Cluster) -> Cluster:
    submitted(cluster, a_pod("urgent", "ci").priority(9), a_pod("plain", "ci"), a_pod("later", "ml"))
    soon = timezone.now() + timedelta(minutes=2)
    Pod.objects.filter(name="later").update(not_before=soon, attempts=5)
    return cluster


def test_positions_and_reasons_are_shown(viewer: Client, waiting: Cluster) -> None:
    shown = words(viewer, "/queue/")
    assert "3 pending pods, 2 in the active queue" in shown
    assert "1 ci/urgent active the next scheduling attempt in one of the next batches 0" in shown
    assert "2 ci/plain active the next scheduling attempt in one of the next batches 0" in shown
    assert "– ml/later backing off" in shown


def test_next_attempt_of_a_gated_pod_follows_its_event(viewer: Client, waiting: Cluster) -> None:
    Pod.objects.filter(name="later").update(queued=False, not_before=None)
    assert "removal of the pod's scheduling gates after this event" in words(viewer, "/queue/")


def test_each_queue_has_a_tab_with_a_filter(viewer: Client, waiting: Cluster) -> None:
    assert "ci/urgent" not in words(viewer, "/queue/?standing=back-off")
    found = words(viewer, "/queue/?q=namespace%3Dci+priority%3E5")
    assert "ci/urgent" in found
    assert "ci/plain" not in found
    assert "No pending pods match the filter." in words(viewer, "/queue/?q=namespace%3Dnowhere")


def test_never_fitting_pods_are_counted_and_have_a_tab(viewer: Client, waiting: Cluster) -> None:
    submitted(waiting, a_pod("huge", "ci").cpu(900))
    tried = {"tried_at": timezone.now(), "helped_by": 1}
    Pod.objects.filter(name="huge").update(state="never-fits", queued=False, **tried)
    shown = words(viewer, "/queue/")
    assert "3 pending pods, 2 in the active queue; 1 never fits" in shown
    assert "all 4 active 2 backing off 1 reading images 0 unschedulable 0 gated 0 never fits 1" in shown
    assert "– ci/huge never fits" in shown
    assert "ci/huge" not in words(viewer, "/queue/?standing=resting")
    (row,) = [entry for entry in list_queue(waiting.pk, 10) if entry.key == "ci/huge"]
    assert row.again_at is None
    alone = words(viewer, "/queue/?standing=never-fits")
    assert "when the cluster changes" in alone
    assert "at the latest" not in alone
    assert "ci/huge" in alone
    assert "ci/plain" not in alone


def test_invalid_filter_hides_nothing(viewer: Client, waiting: Cluster) -> None:
    shown = words(viewer, "/queue/?q=nonsense%3D1")
    assert "The filter is invalid. Correct it to show results." in shown
    assert "match the filter" not in shown


def test_empty_queue_is_reported(viewer: Client, cluster: Cluster) -> None:
    assert "No pending pods." in words(viewer, "/queue/")


def test_rows_are_selectable_with_the_right_to_act(
    viewer: Client, browsing: Callable[..., Client], waiting: Cluster
) -> None:
    assert "data-pick" not in viewer.get("/queue/").content.decode()
    page = browsing("submitter").get("/queue/").content.decode()
    assert page.count("data-pick=") == 3
    assert 'data-bulk="cancel"' in page
    assert 'data-bulk="priority"' not in page
    assert 'data-bulk="priority"' in browsing("operator").get("/queue/").content.decode()


def test_queue_is_exported_as_csv(viewer: Client, waiting: Cluster) -> None:
    answer = viewer.get("/queue/?format=csv&columns=position~pod~standing")
    lines = b"".join(answer).decode("utf-8-sig").splitlines()  # type: ignore[call-overload]
    assert lines == ["position,pod,standing", "1,ci/urgent,due", "2,ci/plain,due", ",ml/later,back-off"]


def test_list_of_workloads_offers_the_actions_of_its_tab(
    viewer: Client, browsing: Callable[..., Client], waiting: Cluster
) -> None:
    operator = browsing("operator")
    page = operator.get("/workloads/?state=not-now").content.decode()
    assert page.count("data-pick=") == 3
    assert re.findall(r'data-bulk="(\w+)"', page) == ["retry", "priority", "cancel"]
    assert re.findall(r'data-bulk="(\w+)"', operator.get("/workloads/").content.decode()) == ["cancel"]
    assert "data-bulk" not in operator.get("/workloads/?state=succeeded").content.decode()
    assert "data-pick" not in viewer.get("/workloads/?state=not-now").content.decode()
