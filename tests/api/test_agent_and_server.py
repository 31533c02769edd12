"""The real agent and the real server over a connection: this machine becomes a node with facts.

Real here: the agent's probes, its thread, HTTP, authentication, the rows. Not here: a cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hetsched.access.tokens import create_token
from hetsched.agent.command import AgentSettings
from hetsched.agent.options import Reporting
from hetsched.agent.program import Agent, build
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.inventory.models import Node
from hetsched.inventory.models.node_facts import NodeFacts
from tests.builders import a_node
from tests.situations import a_cluster


@pytest.fixture
def serving(live_server: Any, settings: Any, transactional_db: None) -> Callable[[Path], Agent]:
    """Return a factory of agents of n1 on a tree, with their folders; a server listens."""
    settings.HETSCHED_AGENT_PAUSE_MILLIS = 0
    a_cluster(a_node("n1"), name="lab")
    token = create_token(role="agent", name="n1", cluster="lab", node="n1")[1]

    def make(root: Path) -> Agent:
        return build(AgentSettings(root=root, node="n1"), Reporting(live_server.url, token))

    return make


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def reported() -> NodeReport:
    return Node.objects.get(name="n1").report


def zones() -> list[str]:
    numa = reported().numa
    return [] if numa is None else [zone.cpus for zone in numa.zones]


def test_agent_reports_facts_and_changes(serving: Callable[[Path], Agent], tmp_path: Path) -> None:
    cpus = tmp_path / "sys/devices/system/cpu"
    for number in range(4):
        topology = cpus / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{number}\n")
    (cpus / "online").write_text("0-3\n")
    (cpus / "present").write_text("0-3\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("".join(f"processor : {n}\nisa : rv64imafdcv\n\n" for n in range(4)))
    agent = serving(tmp_path)
    assert agent._sender is not None
    agent._sender.start()
    try:
        agent.step()
        # The server's threads use the connection of this thread, so rows are visible here before their transaction
        # ends. The row of the node is the last one that the server writes.
        eventually(lambda: reported().numa is not None)
        assert (reported().isa.native or "").startswith("rv64")
        assert zones() == ["0-3"]
        (cpus / "online").write_text("0-2\n")
        agent.step()
        eventually(lambda: (numa := reported().numa) is not None and numa.lost_cpus == "3")
        assert NodeFacts.objects.get().quarantined != ()
    finally:
        agent._sender.stop()
