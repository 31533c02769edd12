"""An empty list names its cause: no objects yet, a filter without matches, or a feature that is not configured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import SYSTEM
from tests.pages.test_node_agent_reports import words

from .reading import main_of


@pytest.mark.parametrize("address", ["/", "/nodes/", "/workloads/", "/decisions/", "/what-if/"])
def test_every_page_without_a_cluster_explains_how_to_add_one(viewer: Client, db: None, address: str) -> None:
    answer = viewer.get(address)
    assert answer.status_code == 200
    assert "hetsched cluster import NAME -f FILE" in answer.content.decode()


def test_empty_list_and_filter_without_matches_differ(viewer: Client, cluster: Cluster) -> None:
    said = {
        "/nodes/?q=zzz": "No nodes match the filter.",
        "/workloads/": "No workloads yet.",
        "/workloads/?q=zzz": "No pods in this state match the filter",
        "/decisions/": "No decisions yet.",
        "/decisions/?verdict=never-fits": "No decisions match the filter.",
        "/nodes/n1/pods/": "No pods on this node.",
        "/nodes/n1/decisions/": "No decision has placed a pod here yet.",
        "/nodes/n2/gpu/": "This node reports no GPUs.",
    }
    for address, sentence in said.items():
        assert sentence in viewer.get(address).content.decode(), address


def test_unconfigured_source_is_not_a_failed_one(
    browsing: Callable[..., Client], cluster: Cluster, settings: Any
) -> None:
    settings.HETSCHED_CALLBACK_HOSTS = []
    shown = words(browsing("submitter"), "/webhooks/")
    assert "Not enabled Webhooks are not enabled" in shown
    assert "Not connected" not in shown


def test_suggested_command_names_the_cluster_and_is_complete(viewer: Client, cluster: Cluster) -> None:
    assert "This is an offline cluster." in words(viewer, "/shadow/")
    assert "hetsched cluster add prod --kubeconfig KUBECONFIG --shadow default-scheduler" in words(viewer, "/shadow/")
    create_cluster(name="prod", kind="kubernetes", actor=SYSTEM)
    page = viewer.get("/shadow/?cluster=prod").content.decode()
    assert '<pre class="mono">hetsched cluster connect prod --shadow default-scheduler</pre>' in page
    assert "NAME" not in main_of(page)
