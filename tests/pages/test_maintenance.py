"""GPUs in maintenance count as capacity and are shown with their count, end and reason."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import cast

import pytest
from django.http import StreamingHttpResponse
from django.test import Client
from django.utils import timezone

from hetsched.contracts.objects.allocation import CardGrant
from hetsched.contracts.times import rfc3339
from hetsched.inventory.fact_review import end_overrides
from hetsched.inventory.maintenance import set_maintenance
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.queries import topics
from tests.builders import a_node, a_pod
from tests.situations import ALICE, a_cluster, placing, recorded, submitted

from .test_balance_page import words


@pytest.fixture
def serviced(db: None) -> Cluster:
    """Return a node whose four GPUs are all held, with GPU 1 in maintenance for four hours."""
    cluster = a_cluster(a_node("cards").gpus(4), a_node("plain"))
    submitted(cluster, a_pod("holds").gpu(4))
    recorded(cluster, placing(cluster, "cards", *(CardGrant(index, 1000, 40960) for index in range(4))))
    until = rfc3339(timezone.now() + timedelta(hours=4))
    set_maintenance(cluster, "cards", "card", "1", until, actor=ALICE, reason="new fan")
    return Cluster.objects.get()


def rows_of(client: Client, address: str) -> list[dict[str, str]]:
    """Return the rows of an export."""
    answer = client.get(address)
    assert isinstance(answer, StreamingHttpResponse)
    text = b"".join(cast(Iterator[bytes], answer.streaming_content)).decode("utf-8-sig")
    return list(csv.DictReader(io.StringIO(text)))


def test_no_utilisation_is_above_one(viewer: Client, serviced: Cluster) -> None:
    (row,) = [item for item in viewer.get("/api/v1/nodes/").json()["items"] if item["name"] == "cards"]
    assert (row["gpu"], row["cards"], row["cardsInstalled"]) == (1.0, 3, 4)
    assert (row["maintenance"]["cards"], row["maintenance"]["reason"]) == (1, "new fan")
    exported = rows_of(viewer, "/nodes/?format=csv&q=name%3Dcards&columns=name~gpu~free.gpu")
    assert [(float(item["gpu"]), float(item["free.gpu"])) for item in exported] == [(1.0, 0.0)]
    document = json.loads(json.dumps(topics.snapshot("cluster:fleet").data))
    assert (document["gpu"], document["cardsInstalled"], document["nodes"]["cards"]["gpu"]) == (1.0, 4, 1.0)
    assert "GPU 100 %" in words(viewer, "/nodes/cards/")


def test_metrics_report_the_capacity_including_gpus_in_maintenance(viewer: Client, serviced: Cluster) -> None:
    lines = viewer.get("/metrics").content.decode().splitlines()
    found = [line.rpartition(" ")[::2] for line in lines if line.startswith("hetsched_cards")]
    assert {name.partition("{")[0]: float(value) for name, value in found} == {
        "hetsched_cards": 3, "hetsched_cards_installed": 4, "hetsched_cards_used": 4
    }  # fmt: skip


def test_free_gpus_exclude_held_and_maintained_ones(viewer: Client, db: None) -> None:
    # GPU 1 is held and in maintenance, GPU 0 is held: of four the other two are free.
    cluster = a_cluster(a_node("cards").gpus(4))
    submitted(cluster, a_pod("holds").gpu(2))
    recorded(cluster, placing(cluster, "cards", CardGrant(0, 1000, 40960), CardGrant(1, 1000, 40960)))
    until = rfc3339(timezone.now() + timedelta(hours=4))
    set_maintenance(cluster, "cards", "card", "1", until, actor=ALICE, reason="new fan")
    exported = rows_of(viewer, "/nodes/?format=csv&columns=name~gpu~free.gpu")
    assert [(float(item["gpu"]), float(item["free.gpu"])) for item in exported] == [(0.5, 2.0)]


def test_node_says_which_gpu_is_in_maintenance_and_why(viewer: Client, serviced: Cluster) -> None:
    text = words(viewer, "/nodes/cards/")
    assert "GPU 1 is in maintenance , ends" in text.replace("maintenance,", "maintenance ,")
    assert "new fan" in text
    assert "1 of 4 GPUs do not accept new pods." in text


def test_problem_list_names_the_gpu_count_and_the_reason(viewer: Client, serviced: Cluster) -> None:
    text = words(viewer, "/clusters/")
    assert "cards: 1 of 4 GPUs in maintenance" in text
    assert "new fan" in text
    assert "3 of 4 installed" in text


def test_nodes_in_maintenance_can_be_listed(viewer: Client, serviced: Cluster) -> None:
    text = words(viewer, "/nodes/?q=maintenance%3Dyes")
    assert "cards" in text
    assert "plain" not in text


def test_end_of_a_maintenance_is_separated_from_its_label(browsing: Callable[..., Client], serviced: Cluster) -> None:
    page = browsing("operator").get("/nodes/cards/gpu/").content.decode()
    # A chip is a flex box: white space between its items is not shown, within one item it is.
    assert "<span>in maintenance, ends <time" in page


def test_end_of_maintenance_restores_the_counts(viewer: Client, serviced: Cluster) -> None:
    set_maintenance(serviced, "cards", "card", "1", None, actor=ALICE, reason="done")
    assert end_overrides(serviced.pk) == 0
    node = Node.objects.get(name="cards")
    assert (node.maintenance, node.card_count, node.cards_installed) == ((), 4, 4)
    assert "in maintenance" not in words(viewer, "/clusters/")
