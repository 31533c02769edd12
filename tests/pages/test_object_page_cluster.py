"""Pages of pods, decisions and workloads have no cluster in their address; they link to their own cluster."""

from __future__ import annotations

import html
import re

import pytest
from django.test import Client

from hetsched.placement.models import Decision
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, placed


@pytest.fixture
def addresses(db: None) -> list[str]:
    """Return the pages of a pod of `second`; a page without a cluster in its address shows `first`."""
    a_cluster(a_node("m1"), name="first")
    pod = placed(a_cluster(a_node("n1"), name="second"), "n1", a_pod("p"))[0]
    decision = Decision.objects.get(pod=pod).pk
    return [f"/workloads/{pod.workload_id}/", f"/why/{pod.pk}/", f"/decisions/{decision}/"]


def test_node_links_contain_their_cluster(viewer: Client, addresses: list[str]) -> None:
    for address in addresses:
        text = viewer.get(address).content.decode()
        links = {html.unescape(link) for link in re.findall(r'href="(/nodes/[^"]+)"', text)}
        assert "/nodes/n1/?cluster=second" in links, address
        assert {viewer.get(link).status_code for link in links} == {200}, address


def test_scripts_get_the_parameters_that_links_keep(viewer: Client, addresses: list[str]) -> None:
    for address in addresses:
        assert 'data-keep="?cluster=second"' in viewer.get(address).content.decode(), address
    assert "data-keep" not in viewer.get("/nodes/").content.decode()


def test_search_stays_in_the_cluster(viewer: Client, addresses: list[str]) -> None:
    for address in addresses:
        assert '<input type="hidden" name="cluster" value="second">' in viewer.get(address).content.decode(), address
