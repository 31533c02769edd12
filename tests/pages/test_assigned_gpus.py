"""GPUs chosen by another device plugin: the console shows grants, assignments and conflicts."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.test import Client

from hetsched.contracts.objects.allocation import CardGrant
from hetsched.inventory.models import Cluster
from hetsched.placement.actions import reconcile_devices
from hetsched.placement.models import Pod
from tests.builders import a_card, a_node, a_pod
from tests.situations import a_cluster, placing, recorded, submitted

from .reading import main_of


@pytest.fixture
def cluster() -> Cluster:
    """Return a cluster of one node with three GPUs, of which `p` was granted the first and `q` the second."""
    made = a_cluster(a_node("n1").having(gpus=tuple(a_card(index, uuid=f"GPU-{index}") for index in range(3))))
    for index, name in enumerate(("p", "q")):
        submitted(made, a_pod(name).gpu())
        recorded(made, placing(made, "n1", CardGrant(index, 1000, 40960, f"GPU-{index}")))
        Pod.objects.filter(name=name).update(uid=f"uid-{name}")
    return made


def report_devices(cluster: Cluster, *, advisory: bool = True, **given: str) -> None:
    devices = {f"uid-{name}": {"main": {"nvidia.com/gpu": [card]}} for name, card in given.items()}
    reconcile_devices(cluster.pk, "n1", devices, advisory=advisory)


def words(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200
    main = main_of(answer.content.decode())
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", main)).split())


def test_advisory_grant_is_shown(viewer: Client, cluster: Cluster) -> None:
    report_devices(cluster, p="GPU-2")
    text = words(viewer, "/nodes/n1/gpu/")
    assert "Another device plugin allocates the GPUs of this node." in text
    assert "default/p 1000 ‰, 40960 MiB advisory granted #0" in text.replace("40 GiB", "40960 MiB")
    assert "advisory not allocated yet" in text  # q
    decision = Pod.objects.get(name="p").decision_id
    assert "#0 (1000 ‰, 40960 MiB) allocated: #2 advisory granted #0" in words(viewer, f"/decisions/{decision}/")


def test_enforced_grant_is_not_shown_as_advice(viewer: Client, cluster: Cluster) -> None:
    report_devices(cluster, advisory=False, p="GPU-0", q="GPU-1")
    text = words(viewer, "/nodes/n1/gpu/")
    assert "advisory" not in text
    assert "granted #" not in text


def test_duplicate_gpu_assignment_shows_a_warning(viewer: Client, cluster: Cluster) -> None:
    report_devices(cluster, p="GPU-0", q="GPU-0")
    text = words(viewer, "/nodes/n1/gpu/")
    assert "Pods with exclusive GPUs may share a GPU." in text
    assert "the kubelet allocated GPU 0, which is also assigned to another pod" in text


def test_node_without_an_agent_shows_no_assignment(viewer: Client, cluster: Cluster) -> None:
    text = words(viewer, "/nodes/n1/gpu/")
    assert "advisory" not in text
    assert "not allocated yet" not in text


def test_rest_has_the_same_assignments(viewer: Client, cluster: Cluster) -> None:
    report_devices(cluster, p="GPU-2")
    cards: list[dict[str, Any]] = viewer.get("/api/v1/nodes/n1/gpu/").json()["cards"]
    assert [card["holders"] for card in cards] == [
        [],
        [
            {
                "pod": "default/q", "milli": 1000, "memoryMiB": 40960,
                "handedOut": {"advisory": True, "granted": [1], "cards": None, "problem": None},
            }
        ],
        [
            {
                "pod": "default/p", "milli": 1000, "memoryMiB": 40960,
                "handedOut": {"advisory": True, "granted": [0], "cards": [2], "problem": None},
            }
        ],
    ]  # fmt: skip
