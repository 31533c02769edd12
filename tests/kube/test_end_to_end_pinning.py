"""End to end on one machine: agent, labels and objects, inventory, decision, binding, pinned container, console.

Real here: this machine, etcd and kube-apiserver, PostgreSQL, Redis, containerd with runc, and every program of the
product as its own process. Simulated: the kubelet, which passes a bound pod's annotations to the runtime.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import NODES, PODS, TOPOLOGIES
from hetsched.contracts.cpuset import parse_cpuset
from tests.agent.containerd import Containerd, cpuset_file, running
from tests.kube.agent_fleet import PATIENCE_SECONDS, object_at, with_agents
from tests.kube.control_plane import ControlPlane
from tests.kube.live import node_of
from tests.kube.scene import make
from tests.system.processes import wait_until

pytestmark = [
    pytest.mark.needs("etcd", "kube-apiserver", "postgres", "redis-server", "containerd", "runc", "busybox"),
    pytest.mark.timeout(600),
]
ONLINE = parse_cpuset(Path("/sys/devices/system/cpu/online").read_text())
NODE = "here"
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
    with with_agents(plane, tmp_path, NODE) as fleet:
        ours, asked = fleet.programs, fleet.asked

        # The node is added: first from the API server, then from its agent.
        wait_until(lambda: "name" in asked(f"nodes/{NODE}/"), what=ours.log_tails, seconds=PATIENCE_SECONDS)
        fleet.start_agent("--pin", "--runtime", str(runtime.socket))
        wait_until(fleet.zones, what=ours.log_tails, seconds=PATIENCE_SECONDS)
        assert frozenset().union(*(parse_cpuset(zone["cpus"]) for zone in fleet.zones())) == ONLINE
        wait_until(lambda: object_at(api, TOPOLOGIES.path(name=NODE)), what=ours.log_tails, seconds=PATIENCE_SECONDS)
        labels = object_at(api, NODES.path(name=NODE))["metadata"]["labels"]
        assert [key for key in labels if "hetsched.io" in key or key == "ARCH"]

        # A pod with one exclusive CPU is decided and bound.
        _make_pod(api)
        where = PODS.path(namespace="default", name="pinned")
        wait_until(lambda: node_of(object_at(api, where)), what=ours.log_tails, seconds=PATIENCE_SECONDS)
        pod = object_at(api, where)
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


def _make_node(api: Api) -> None:
    allocatable = {"cpu": str(len(ONLINE)), "memory": "4Gi", "pods": "110"}
    make(api, NODES, NODE, status={"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]})


def _make_pod(api: Api) -> None:
    wishes = {"topology.crane.io/topology-awareness": "true", "topology.crane.io/cpu-policy": "exclusive"}
    amounts = {"cpu": "1", "memory": "64Mi"}
    container = {"name": "main", "image": "busybox", "resources": {"requests": amounts, "limits": amounts}}
    spec = {"containers": [container], "schedulerName": "hetsched"}
    make(api, PODS, "pinned", "default", metadata={"annotations": wishes}, spec=spec)
