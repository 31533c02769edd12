"""The node page shows agent reports: their age, rejected facts, and the actual CPUs of containers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from django.test import Client

from hetsched.contracts.messages.agent_report import (
    AgentReport,
    MachineCard,
    MachineIsa,
    MachineZone,
    PinnedContainer,
)
from hetsched.inventory.agent_messages import receive
from hetsched.inventory.models import Cluster
from hetsched.inventory.models.node_facts import NodeFacts
from hetsched.placement.models import Pod
from tests.api.test_agent_report_endpoint import message
from tests.builders import a_pod
from tests.pages.test_node_facts import words
from tests.situations import placed

CARDS = tuple(MachineCard(i, f"GPU-{i}", "A100-SXM4-40GB", 40960, zone=0, healthy=True) for i in range(2))
REPORT = AgentReport("n1", MachineIsa("x86", "x86-64-v3"), (MachineZone(0, "0-7", 16384),), (), CARDS, agent="1.2")


@pytest.fixture
def reported_cluster(cluster: Cluster, settings: Any) -> Cluster:
    """Create a cluster whose agent of n1 reported, and then lost a GPU."""
    settings.HETSCHED_AGENT_PAUSE_MILLIS = 0
    receive(cluster, message(REPORT))
    receive(cluster, message(msgspec.structs.replace(REPORT, gpus=CARDS[:1]), sequence=2))
    return cluster


def test_overview_shows_the_agent_and_the_source_of_each_fact(viewer: Client, reported_cluster: Cluster) -> None:
    shown = words(viewer, "/nodes/n1/")
    assert "Node agent reporting Version 1.2" in shown
    assert "isa conflict agent x86-64-v3" in shown  # the file says x86-64-v3+aes
    assert "gpu conflict agent GPU-0 A100-SXM4-40GB" in shown


def test_quarantined_facts_are_decided_by_operators(
    viewer: Client, browsing: Callable[..., Client], reported_cluster: Cluster
) -> None:
    shown = words(viewer, "/nodes/n1/")
    assert "Facts in quarantine" in shown
    assert "missing gpu GPU-1" in shown
    assert "Confirm removal" not in shown
    page = browsing("operator").get("/nodes/n1/").content.decode()
    assert "Confirm removal" in page
    assert "&quot;action&quot;:&quot;reject&quot;" in page
    assert "The scheduler can use this capacity again, although no source reports it." in page


def test_missing_gpu_is_not_shown_as_unhealthy(viewer: Client, reported_cluster: Cluster) -> None:
    page = viewer.get("/nodes/n1/gpu/").content.decode()
    assert '<a class="chip bad" href="/nodes/n1/#quarantine">missing</a>' in page
    assert "unhealthy" not in page


def test_first_screen_links_to_quarantined_facts(viewer: Client, reported_cluster: Cluster) -> None:
    page = viewer.get("/").content.decode()
    assert "1 node with facts in quarantine" in page
    assert 'href="/nodes/n1/#quarantine"' in page
    NodeFacts.objects.update(quarantined=[])
    assert "in quarantine" not in viewer.get("/").content.decode()


def test_silent_agent_is_shown_on_every_tab(viewer: Client, reported_cluster: Cluster) -> None:
    assert "agent not reporting" not in words(viewer, "/nodes/n1/gpu/")
    NodeFacts.objects.update(reported_at=datetime.now(UTC) - timedelta(minutes=2))
    assert "agent not reporting" in words(viewer, "/nodes/n1/gpu/")


def test_granted_and_actual_cpus_are_shown(viewer: Client, reported_cluster: Cluster) -> None:
    placed(reported_cluster, "n1", a_pod("a"))
    Pod.objects.filter(name="a").update(uid="uid-a")
    pins = (
        PinnedContainer("uid-a", "main", "0-1", "0-1", "hetsched"),
        PinnedContainer("uid-a", "side", "2", "0-7", "hetsched", "it has 0-7"),
        PinnedContainer("of-an-unknown-pod", "main", "4", "4"),
    )
    NodeFacts.objects.update(pinned=pins)
    shown = words(viewer, "/nodes/n1/numa/")
    assert "default/a main 0-1 0-1 hetsched none" in shown
    assert "default/a side 2 0-7 hetsched it has 0-7" in shown
    assert "of-an-unknown-pod" not in shown
