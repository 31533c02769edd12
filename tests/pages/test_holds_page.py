"""Holds are shown with their reserved capacity and nodes; their owners end them by a button."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from hetsched.contracts.api.decision import PolicyRef
from hetsched.contracts.objects.allocation import Allocation, CardGrant, ZoneGrant
from hetsched.inventory.models import Cluster
from hetsched.placement.actions import HoldPart, cancel_hold, create_hold
from hetsched.placement.models import Hold, Reservation
from tests.builders import a_node, a_pod
from tests.pages.test_node_agent_reports import words
from tests.situations import ALICE, a_cluster, submitted


@pytest.fixture
def cluster(db: None) -> Cluster:
    return a_cluster(a_node("n1").gpus(2).zone("node0", "0-3").zone("node1", "4-7"))


def held(cluster: Cluster, owner: str = "team-b", **more: object) -> Hold:
    """Hold half of card 1 and two CPUs of zone node0 for a pod of 1 CPU and 1Gi."""
    allocation = Allocation(gpus=(CardGrant(1, 500, 20480),), zones=(ZoneGrant("node0", "0-1", 2000),))
    at = Cluster.objects.get(pk=cluster.pk).revision
    made = create_hold(
        cluster.pk, [HoldPart(a_pod("release").build(), "n1", allocation)], revision=at,
        policy=PolicyRef("hetsched", 1), seconds=600, actor=ALICE, owner=owner, note="release 17 <b>", **more,
    )  # fmt: skip
    return Hold.objects.get(pk=made.hold_id)


def owner_of_the_latest() -> str:
    return f"user:{User.objects.latest('id').pk}"


def test_empty_list_links_to_a_what_if(viewer: Client, cluster: Cluster) -> None:
    assert "No holds." in words(viewer, "/holds/")


def test_open_holds_are_listed_first_and_ended_ones_in_a_tab(viewer: Client, cluster: Cluster) -> None:
    row = held(cluster)
    assert "held release 17 <b> 1 default alice" in words(viewer, "/holds/")
    cancel_hold(row, actor=ALICE, reason="not today")
    assert "release 17" not in words(viewer, "/holds/")
    assert "cancelled release 17 <b> 1 default alice" in words(viewer, "/holds/?show=over")


@pytest.mark.parametrize(("query", "found"), [("note=release*", True), ("by=bob", False), ("state=expired", False)])
def test_hold_list_is_filtered(viewer: Client, cluster: Cluster, query: str, found: bool) -> None:
    held(cluster)
    assert ("release 17" in words(viewer, f"/holds/?q={query}")) is found


def test_hold_shows_its_capacity_and_use(viewer: Client, cluster: Cluster) -> None:
    row = held(cluster)
    shown = words(viewer, f"/holds/{row.pk}/")
    assert "reserved for default/release n1 reserved 1 1 GiB #1 (500 ‰) node0 [0-1]" in shown
    assert f"hetsched submit --hold {row.pk}" in shown


def test_owner_and_operators_may_end_a_hold(browsing: Callable[..., Client], cluster: Cluster) -> None:
    owner = browsing("submitter")
    address = f"/holds/{held(cluster, owner_of_the_latest()).pk}/"
    assert "Cancel hold…" in words(owner, address)
    assert "Cancel hold…" in words(browsing("operator"), address)
    assert "Cancel hold…" not in words(browsing("submitter"), address)
    assert "Cancel hold…" not in words(browsing("viewer"), address)


def test_ended_hold_has_a_reason_and_no_buttons(browsing: Callable[..., Client], cluster: Cluster) -> None:
    row = held(cluster)
    cancel_hold(row, actor=ALICE, reason="not today")
    shown = words(browsing("operator"), f"/holds/{row.pk}/")
    assert "not today" in shown
    assert "no longer reserved" in shown
    assert "Cancel hold…" not in shown


def test_node_shows_held_capacity(viewer: Client, cluster: Cluster) -> None:
    row = held(cluster)
    for tab in ("gpu", "numa", "pods"):
        page = viewer.get(f"/nodes/n1/{tab}/").content.decode()
        assert f'<a href="/holds/{row.pk}/">reserved for default/release</a>' in page
    assert 'class="owner-1 held-capacity"' in viewer.get("/nodes/n1/gpu/").content.decode()
    assert "cpu-cell owner-1 held-capacity" in viewer.get("/nodes/n1/numa/").content.decode()


def test_workload_shows_its_hold(viewer: Client, cluster: Cluster) -> None:
    row = held(cluster, "team-b")
    workload = submitted(cluster, a_pod("release"), owner="team-b", hold=row.pk)
    assert f"Hold reserved by hold {row.pk}" in words(viewer, f"/workloads/{workload.pk}/")
    assert str(workload.pk) in words(viewer, f"/holds/{row.pk}/")


@pytest.mark.parametrize(
    ("reason", "shown"), [("its pod came", "used by its pod"), ("hold used", "no longer reserved")]
)
def test_unused_capacity_of_a_hold_is_not_shown_as_used(
    viewer: Client, cluster: Cluster, reason: str, shown: str
) -> None:
    row = held(cluster)
    submitted(cluster, a_pod("release"), owner="team-b", hold=row.pk)
    Reservation.objects.update(active=False, release_reason=reason, released_revision=9)
    assert shown in words(viewer, f"/holds/{row.pk}/")


def test_search_and_audit_link_to_the_hold(browsing: Callable[..., Client], cluster: Cluster) -> None:
    row = held(cluster)
    operator = browsing("operator")
    assert f"/holds/{row.pk}/" in operator.get("/search/?q=release").content.decode()
    assert f"/holds/{row.pk}/" in operator.get("/audit/").content.decode()


def test_submitters_may_hold_capacity(viewer: Client, browsing: Callable[..., Client], cluster: Cluster) -> None:
    assert 'id="hold-fields"' in browsing("submitter").get("/what-if/").content.decode()
    assert 'id="hold-fields"' not in viewer.get("/what-if/").content.decode()


def test_extension_is_offered_up_to_the_limit_only(
    browsing: Callable[..., Client], cluster: Cluster, settings: object
) -> None:
    settings.HETSCHED_LONGEST_HOLD_SECONDS = 1800  # type: ignore[attr-defined]
    page = browsing("operator").get(f"/holds/{held(cluster).pk}/").content.decode()
    assert '<option value="1800">30 min</option>' in page
    assert '<option value="3600">' not in page


def test_unknown_hold_returns_404(viewer: Client, cluster: Cluster) -> None:
    assert viewer.get("/holds/h-1/").status_code == 404
