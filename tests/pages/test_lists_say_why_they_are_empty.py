"""An empty page says which it is: nothing exists yet, or a filter hides all."""

from __future__ import annotations

import pytest
from django.test import Client

from hetsched.inventory.models import Cluster


@pytest.mark.parametrize("address", ["/", "/nodes/", "/workloads/", "/decisions/", "/what-if/"])
def test_without_a_cluster_each_page_says_how_to_get_one(viewer: Client, db: None, address: str) -> None:
    answer = viewer.get(address)
    assert answer.status_code == 200
    assert "hetsched cluster import NAME -f FILE" in answer.content.decode()


def test_nothing_yet_and_nothing_found_differ(viewer: Client, cluster: Cluster) -> None:
    said = {
        "/nodes/?q=zzz": "The filter hides all nodes.",
        "/workloads/": "Nothing has been submitted yet.",
        "/workloads/?q=zzz": "No pod in this state passes the filter",
        "/decisions/": "Nothing has been decided yet.",
        "/decisions/?verdict=never-fits": "The filter hides all decisions.",
        "/nodes/n1/pods/": "No pod holds anything here.",
        "/nodes/n1/decisions/": "Nothing was placed here by a decision yet.",
        "/nodes/n2/gpu/": "This node states no cards.",
    }
    for address, sentence in said.items():
        assert sentence in viewer.get(address).content.decode(), address
