"""End to end on one machine: agent, labels and objects, inventory, decision, binding, pinned container, console.

Real here: this machine, etcd and kube-apiserver, PostgreSQL, Redis, containerd with runc, and every program of the
product as its own process. Simulated: the kubelet, which passes a bound pod's annotations to the runtime.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.resources import NODES, PODS, TOPOLOGIES
from hetsched.contracts.cpuset import parse_cpuset
from tests.agent.containerd import Containerd, cpuset_file, running
from tests.kube import discovery_account
from tests.kube.control_plane import ControlPlane
from tests.kube.live import PACE, connected, node_of, start_watch
from tests.kube.scene import make
from tests.system.plane import CELERY, QUIET, Plane
from tests.system.processes import Process, accepts, free_port, wait_until

pytestmark = [
    pytest.mark.needs("etcd", "kube-apiserver", "postgres", "redis-server", "containerd", "runc", "busybox"),
    pytest.mark.timeout(600),
]
ONLINE = parse_cpuset(Path("/sys/devices/system/cpu/online").read_text())
NODE, PATIENCE_SECONDS = "here", 120
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
PAGE = """
import django, sys; django.setup()
from django.contrib.auth import get_user_model
from django.test import Client
looking = Client(SERVER_NAME="localhost")
looking.force_login(get_user_model().objects.create_superuser("looks"))
print(looking.get(sys.argv[1], follow=True).content.decode())
"""


@pytest.fixture(scope="module")
def runtime() -> Iterator[Containerd]:
    with running() as containerd:
        yield containerd


def test_container_runs_on_the_predicted_cpus(
    api: Api, plane: ControlPlane, runtime: Containerd, tmp_path: Path
) -> None:
    _make_node(api)
    with connected(plane, **SETTINGS) as ours, discovery_account.discovering(plane) as discovery:
        (tmp_path / "discovery.json").write_text(json.dumps(discovery))
        tokens = json.loads(
            ours.run("-c", CONNECT, str(ours.folder / "kubeconfig"), str(tmp_path / "discovery.json"), NODE)
        )
        port = _serve(ours)
        server = f"http://127.0.0.1:{port}"

        def asked(path: str) -> Any:
            return httpx.get(f"{server}/api/v1/{path}", headers={"Authorization": f"Bearer {tokens['viewer']}"}).json()

        # The node is added: first from the API server, then from its agent.
        wait_until(lambda: "name" in asked(f"nodes/{NODE}/"), what=ours.log_tails, seconds=PATIENCE_SECONDS)
        _agent(ours, server, tokens["agent"], runtime, tmp_path)
        wait_until(lambda: _zones(asked), what=ours.log_tails, seconds=PATIENCE_SECONDS)
        assert frozenset().union(*(parse_cpuset(zone["cpus"]) for zone in _zones(asked))) == ONLINE
        wait_until(lambda: _object(api, TOPOLOGIES.path(name=NODE)), what=ours.log_tails, seconds=PATIENCE_SECONDS)
        labels = _object(api, NODES.path(name=NODE))["metadata"]["labels"]
        assert [key for key in labels if "hetsched.io" in key or key == "ARCH"]

        # A pod with one exclusive CPU is decided and bound.
        _make_pod(api)
        where = PODS.path(namespace="default", name="pinned")
        wait_until(lambda: node_of(_object(api, where)), what=ours.log_tails, seconds=PATIENCE_SECONDS)
        pod = _object(api, where)
        granted = json.loads(pod["metadata"]["annotations"]["hetsched.io/allocation"])
        assert (granted["node"], granted["uid"]) == (NODE, pod["metadata"]["uid"])
        mine = granted["containers"]["main"]
        assert len(parse_cpuset(mine)) == 1

        # Its container starts on every CPU, and is moved to its exclusive one.
        sandbox = runtime.pod("pinned", pod["metadata"]["annotations"], uid=pod["metadata"]["uid"])
        file = cpuset_file(runtime.container(sandbox))
        assert file is not None
        wait_until(lambda: file.read_text().strip() == mine, what=ours.log_tails, seconds=PATIENCE_SECONDS)

        # The console shows the predicted and the actual CPUs without drift.
        expected = {"pod": "default/pinned", "container": "main", "predicted": mine, "actual": mine, "drift": ""}

        def shown() -> bool:
            pins = asked(f"nodes/{NODE}/numa/").get("pins") or []
            return [{name: pin[name] for name in expected} for pin in pins] == [expected]

        wait_until(shown, what=lambda: f"{asked(f'nodes/{NODE}/numa/')}\n{ours.log_tails()}", seconds=PATIENCE_SECONDS)
        page = ours.run("-c", PAGE, f"/nodes/{NODE}/numa/")
        assert "default/pinned" in page
        assert ours.driver
        assert ours.driver("violations") == []


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


def _agent(ours: Plane, server: str, token: str, runtime: Containerd, folder: Path) -> None:
    (folder / "token").write_text(token)
    words = ["--node", NODE, "--server", server, "--token-file", folder / "token", "--state", folder / "agent"]
    command = [sys.executable, "-m", "hetsched.agent", *words, "--pin", "--runtime", runtime.socket]
    ours.running.append(Process([str(word) for word in command], env=ours.env, log=ours.folder / "agent.log"))


def _make_node(api: Api) -> None:
    allocatable = {"cpu": str(len(ONLINE)), "memory": "4Gi", "pods": "110"}
    make(api, NODES, NODE, status={"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]})


def _make_pod(api: Api) -> None:
    wishes = {"topology.crane.io/topology-awareness": "true", "topology.crane.io/cpu-policy": "exclusive"}
    amounts = {"cpu": "1", "memory": "64Mi"}
    container = {"name": "main", "image": "busybox", "resources": {"requests": amounts, "limits": amounts}}
    spec = {"containers": [container], "schedulerName": "hetsched"}
    make(api, PODS, "pinned", "default", metadata={"annotations": wishes}, spec=spec)


def _zones(asked: Any) -> list[dict[str, Any]]:
    return [zone for zone in asked(f"nodes/{NODE}/numa/").get("zones") or [] if zone["cpus"]]


def _object(api: Api, path: str) -> dict[str, Any]:
    """Return an object, empty if it does not exist."""
    try:
        found: dict[str, Any] = json.loads(api.get(path))
    except ApiFailure as failure:
        if failure.status == 404:
            return {}
        raise
    return found
