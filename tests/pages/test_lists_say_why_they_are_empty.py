"""An empty page says which it is: nothing exists yet, a filter hides all, or this server is not set up for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import SYSTEM
from tests.pages.test_words_of_agents_are_shown import words

from .reading import main_of


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


def test_what_this_server_is_not_set_up_for_is_no_source_that_failed(
    browsing: Callable[..., Client], cluster: Cluster, settings: Any
) -> None:
    settings.HETSCHED_CALLBACK_HOSTS = []
    shown = words(browsing("submitter"), "/webhooks/")
    assert "Not switched on This server may call nobody" in shown
    assert "Source not connected" not in shown


def test_a_command_that_helps_names_the_cluster_and_stands_for_itself(viewer: Client, cluster: Cluster) -> None:
    assert "This cluster lives only here" in words(viewer, "/shadow/")
    create_cluster(name="prod", kind="kubernetes", actor=SYSTEM)
    page = viewer.get("/shadow/?cluster=prod").content.decode()
    assert '<pre class="mono">hetsched cluster connect prod --shadow default-scheduler</pre>' in page
    assert "NAME" not in main_of(page)
