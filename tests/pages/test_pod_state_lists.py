"""The four counters of the first screen link to lists of exactly those pods."""

from __future__ import annotations

import re

from django.test import Client

from hetsched.contracts.api.decision import Verdict
from hetsched.inventory.models import Cluster
from hetsched.placement.models import Workload
from tests.builders import a_pod
from tests.situations import a_cluster, placed, recorded, refusing, submitted
from web.pages.clusters.fleet import verdicts
from web.pages.workloads.workload_list import TABS


def test_each_count_equals_its_list(db: None) -> None:
    for verdict in verdicts():
        assert set(verdict["states"].split()) == {state.value for state in TABS[verdict["state"]]}


def test_tabs_count_and_show_pods_in_those_states(viewer: Client, cluster: Cluster) -> None:
    placed(cluster, "n1", a_pod("one"), a_pod("two"))
    submitted(cluster, a_pod("large"))
    recorded(cluster, refusing(cluster, Verdict.NEVER_FITS))
    page = viewer.get("/workloads/?state=never-fits").content.decode()
    tabs = re.findall(r'<a href="\?state=([a-z-]+)[^>]*>[^<]*<span class="muted">(\d+)<', page)
    assert dict(tabs)["running"] == "2"
    assert dict(tabs)["never-fits"] == "1"
    assert "default/large" in page
    assert "default/one" not in page


def test_invalid_filter_shows_no_counts(viewer: Client, cluster: Cluster) -> None:
    placed(cluster, "n1", a_pod("one"))
    page = viewer.get("/workloads/?q=nod=x").content.decode()
    tabs = page.partition('id="states"')[2].partition("</nav>")[0]
    assert re.findall(r">([a-z ]+)", tabs) == [
        "running", "pending", "never fits", "misconfigured", "failed", "succeeded", "cancelled",
    ]  # fmt: skip
    assert "<span" not in tabs
    assert "0 of 2 nodes" not in viewer.get("/nodes/?q=nod=x").content.decode()
    assert "0 entries" not in viewer.get("/audit/?q=nod=x").content.decode()


def test_search_matches_name_and_namespace(viewer: Client, cluster: Cluster) -> None:
    placed(cluster, "n1", a_pod("web-1", "shop"), a_pod("web-2", "blog"))
    assert "blog/web-2" not in viewer.get("/workloads/?q=shop/web").content.decode()
    both = viewer.get("/workloads/?q=web").content.decode()
    assert "shop/web-1" in both
    assert "blog/web-2" in both


def test_workload_shows_the_reason_of_each_pod(viewer: Client, cluster: Cluster) -> None:
    workload = submitted(cluster, a_pod("a"), a_pod("b"))
    assert "The pod is in the queue" in viewer.get(f"/workloads/{workload.pk}/").content.decode()
    recorded(cluster, refusing(cluster))
    assert "The pod is in the queue" not in viewer.get(f"/workloads/{workload.pk}/").content.decode()
    only = viewer.get(f"/workloads/{workload.pk}/?pod=default/b").content.decode()
    assert "<h2>default/b</h2>" in only
    assert "<h2>default/a</h2>" not in only


def test_workload_page_names_its_cluster(viewer: Client, cluster: Cluster) -> None:
    other = a_cluster(name="other")
    workload = submitted(other)
    assert Workload.objects.count() == 1
    assert "to other" in viewer.get(f"/workloads/{workload.pk}/").content.decode()
