"""All of hetsched as real processes on a real API server, with discovery, REST and the agent of one node."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from tests.kube import discovery_account
from tests.kube.control_plane import ControlPlane
from tests.kube.live import PACE, connected, start_watch
from tests.system.plane import CELERY, QUIET, Plane
from tests.system.processes import Process, accepts, free_port, wait_until

PATIENCE_SECONDS = 120
SETTINGS = PACE | {
    "HETSCHED_DISCOVER_SECONDS": "1",
    "HETSCHED_AGENT_REPORT_SECONDS": "1",
    "HETSCHED_AGENT_KEYS_OVER_HTTP": "1",
}
# Actions that need the database: connect discovery's account, create tokens, render a page.
CONNECT = """
import django, json, sys; django.setup()
from hetsched.access.tokens import create_token
from hetsched.inventory.connections import connect
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import SYSTEM
ours, discovery = (json.load(open(path)) for path in sys.argv[1:3])
connect(Cluster.objects.get(name="live"), kubeconfig=ours, discovery_kubeconfig=discovery, actor=SYSTEM, reason="test")
agent = create_token(role="agent", name="here", cluster="live", node=sys.argv[3])[1]
print(json.dumps({"agent": agent, "viewer": create_token(role="viewer", name="looks")[1]}))
"""


class AgentFleet:
    """The running programs except the agent, and their REST interface."""

    def __init__(self, programs: Plane, node: str, folder: Path, port: int, tokens: dict[str, str]) -> None:
        self.programs = programs
        self._node = node
        self._folder = folder
        self._server = f"http://127.0.0.1:{port}"
        self._tokens = tokens

    def asked(self, path: str) -> Any:
        """Return the JSON document of a REST path, read as a viewer."""
        headers = {"Authorization": f"Bearer {self._tokens['viewer']}"}
        return httpx.get(f"{self._server}/api/v1/{path}", headers=headers).json()

    def zones(self) -> list[dict[str, Any]]:
        """Return the zones of the node that have CPUs."""
        return [zone for zone in self.asked(f"nodes/{self._node}/numa/").get("zones") or [] if zone["cpus"]]

    def start_agent(self, *options: str, within: Callable[..., list[str]] = lambda *words: [*words]) -> None:
        """Start the agent of the node; `within` returns the command that runs a program on the node."""
        (self._folder / "token").write_text(self._tokens["agent"])
        words = ["--node", self._node, "--server", self._server, "--token-file", str(self._folder / "token")]
        words += ["--state", str(self._folder / "agent"), *options]
        command = within(sys.executable, "-m", "hetsched.agent", *words)
        log = self.programs.folder / "agent.log"
        self.programs.running.append(Process(command, env=self.programs.env, log=log))


@contextmanager
def with_agents(plane: ControlPlane, folder: Path, node: str) -> Iterator[AgentFleet]:
    """Run every program except the agent of `node`."""
    with connected(plane, **SETTINGS) as ours, discovery_account.discovering(plane) as discovery:
        (folder / "discovery.json").write_text(json.dumps(discovery))
        kubeconfigs = (str(ours.folder / "kubeconfig"), str(folder / "discovery.json"))
        tokens = json.loads(ours.run("-c", CONNECT, *kubeconfigs, node))
        yield AgentFleet(ours, node, folder, _serve(ours), tokens)


def _serve(ours: Plane) -> int:
    """Start every program except the agent and return the port of the web server."""
    port = free_port()
    start_watch(ours)
    ours.start_worker()
    ours.start("discover", *CELERY, "worker", "-P", "solo", "-Q", "discover", *QUIET)
    ours.start_beat()
    ours.start("web", "-m", "uvicorn", "hetsched.project.asgi:application", "--port", str(port), "--lifespan", "off")
    wait_until(lambda: accepts(port), what=ours.log_tails, seconds=60)
    return port


def object_at(api: Api, path: str) -> dict[str, Any]:
    """Return an object, empty if it does not exist."""
    try:
        found: dict[str, Any] = json.loads(api.get(path))
    except ApiFailure as failure:
        if failure.status == 404:
            return {}
        raise
    return found
