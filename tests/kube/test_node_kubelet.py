"""A real kubelet on this machine: hetsched places a pod, the kubelet admits it, and all sources state the same CPUs.

Real here: this machine, etcd and kube-apiserver, the kubelet, containerd with runc, PostgreSQL, Redis, and every
program of the product as its own process. One test shows the kubelet and the agent pairs of CPUs as threads of one
core, if the machine has no such threads; everything else is the machine's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import PODS
from hetsched.agent.kubelet.podresources import PodResourcesClient
from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from tests import parts
from tests.agent.containerd import cpuset_file
from tests.kube.agent_fleet import PATIENCE_SECONDS, AgentFleet, object_at, with_agents
from tests.kube.control_plane import ControlPlane
from tests.kube.live import node_of, reason
from tests.kube.node_kubelet import ONLINE, NodeKubelet, missing_requirement, node_kubelet, pod
from tests.system.processes import wait_until

pytestmark = [
    pytest.mark.needs("etcd", "kube-apiserver", "kubelet", "postgres", "redis-server", "containerd", "runc", "busybox"),
    pytest.mark.timeout(600),
]
NODE = "here"
STATIC = {"cpuManagerPolicy": "static", "topologyManagerPolicy": "restricted", "kubeReserved": {"cpu": "1"}}
# The kubelet requires that NUMA nodes reserve exactly what kubeReserved and evictionHard reserve.
MEMORY = {
    "memoryManagerPolicy": "Static", "kubeReserved": {"cpu": "1", "memory": "100Mi"},
    "evictionHard": {"memory.available": "100Mi"}, "reservedMemory": [{"numaNode": 0, "limits": {"memory": "200Mi"}}],
}  # fmt: skip
CPU_FOLDER = Path("/sys/devices/system/cpu")
Json = dict[str, Any]


@pytest.fixture(autouse=True)
def _machine() -> None:
    if missing := missing_requirement():
        parts.skip_forbidden("kubelet", missing)


@contextmanager
def node_with_agent(
    plane: ControlPlane, folder: Path, configuration: Json, shown: dict[str, str] | None = None
) -> Iterator[tuple[AgentFleet, NodeKubelet]]:
    """Run the kubelet and the agent of this machine until hetsched knows the zones and the policy of the node."""
    with with_agents(plane, folder, NODE) as fleet, node_kubelet(plane, NODE, configuration, shown) as kubelet:
        fleet.start_agent("--runtime", str(kubelet.runtime.socket), within=kubelet.enter)

        def is_known() -> bool:
            return bool(fleet.zones()) and fleet.asked(f"nodes/{NODE}/numa/")["cpuManagerPolicy"] == "static"

        wait_until(is_known, what=lambda: fleet.programs.log_tails() + kubelet.log_tail(), seconds=PATIENCE_SECONDS)
        yield fleet, kubelet


class Pods:
    """Pods of the node: created for hetsched to place, or bound to the node without a scheduler."""

    def __init__(self, plane: ControlPlane, api: Api, fleet: AgentFleet, kubelet: NodeKubelet) -> None:
        self._plane, self._api, self._fleet, self._kubelet = plane, api, fleet, kubelet

    def create(self, name: str, cpus: int, **spec: Any) -> None:
        self._plane.call("POST", "/api/v1/namespaces/default/pods", pod(name, cpus, **spec))

    def read(self, name: str) -> Json:
        return object_at(self._api, PODS.path(namespace="default", name=name))

    def wait(self, name: str, holds: Any) -> Json:
        """Return a pod after it fulfils a condition."""

        def logs() -> str:
            return f"{self.read(name)}\n{self._fleet.programs.log_tails()}\n{self._kubelet.log_tail()}"

        wait_until(lambda: holds(self.read(name)), what=logs, seconds=PATIENCE_SECONDS)
        return self.read(name)

    def placed(self, name: str, cpus: int) -> Json:
        """Create a pod, and return it when hetsched has bound it and the kubelet runs it."""
        self.create(name, cpus, schedulerName="hetsched")
        return self.wait(name, lambda found: found["status"].get("phase") in ("Running", "Failed"))

    def rejection(self, name: str, cpus: int) -> str:
        """Bind a pod to the node and return the reason of its rejection by the kubelet."""
        self.create(name, cpus, nodeName=NODE)
        found = self.wait(name, lambda found: found["status"].get("phase") in ("Running", "Failed"))
        return str(found["status"].get("reason", "admitted"))

    def prediction(self, name: str, cpus: int) -> str:
        """Create a pod, and return the reason why hetsched does not bind it to the node."""
        self.create(name, cpus, schedulerName="hetsched")
        found = self.wait(name, lambda found: reason(found) or node_of(found))
        return reason(found)


def test_kubelet_assigns_the_predicted_cpus(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    with node_with_agent(plane, tmp_path, STATIC) as (fleet, kubelet):
        pods = Pods(plane, api, fleet, kubelet)
        numa = fleet.asked(f"nodes/{NODE}/numa/")
        client = PodResourcesClient(kubelet.root / "pod-resources" / "kubelet.sock")
        assert numa["reservedCpus"] == format_cpuset(ONLINE - parse_cpuset(client.allocatable().cpus))

        found = pods.placed("placed", cpus=1)
        assert (found["status"]["phase"], node_of(found)) == ("Running", NODE)
        granted = json.loads(found["metadata"]["annotations"]["hetsched.io/allocation"])
        predicted = [zone["cpus"] for zone in granted["predicted"]]
        assert len(predicted) == 1
        uid, status = found["metadata"]["uid"], found["status"]["containerStatuses"][0]
        container = status["containerID"].removeprefix("containerd://")

        def pinned() -> str:
            return cpuset_file(container).read_text().strip()

        wait_until(lambda: pinned() == predicted[0], what=pinned, seconds=PATIENCE_SECONDS)
        assert kubelet.assigned() == {uid: {"main": predicted[0]}}
        (listed,) = client.pods()
        assert [(listed.name, one.cpus) for one in listed.containers] == [("placed", predicted[0])]
        client.close()

        def reported() -> list[str]:
            return [held["cpus"] for zone in fleet.zones() for held in zone["held"] if held["pod"] == "default/placed"]

        wait_until(lambda: reported() == predicted, what=fleet.programs.log_tails, seconds=PATIENCE_SECONDS)

        # Both sides reject a pod that asks for all CPUs. The kubelet names the first manager that rejects the pod.
        assert pods.rejection("too-large", len(ONLINE)) == "TopologyAffinityError"
        assert f"Insufficient cpu: {len(ONLINE)} requested" in pods.prediction("as-large", len(ONLINE))
        assert fleet.programs.driver
        assert fleet.programs.driver("violations") == []


def test_kubelet_rejections_equal_predictions(plane: ControlPlane, api: Api, tmp_path: Path) -> None:
    configuration = STATIC | MEMORY | {"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}
    with node_with_agent(plane, tmp_path, configuration, _threads_of_cores()) as (fleet, kubelet):
        pods = Pods(plane, api, fleet, kubelet)
        # Hints of the memory manager are not modelled, and the node says so.
        facts = fleet.asked(f"nodes/{NODE}/numa/")
        assert facts["unknownOptions"] == []
        assert all(zone["staticMemory"]["memory"] for zone in facts["zones"])
        assert pods.rejection("bound", cpus=1) == "SMTAlignmentError"
        assert "SMTAlignmentError" in pods.prediction("waits", cpus=1)
        assert kubelet.assigned() == {}


def _threads_of_cores() -> dict[str, str]:
    """Return the sysfs files in which two CPUs are the threads of one core, empty if the machine has such CPUs."""
    lists = {cpu: (CPU_FOLDER / f"cpu{cpu}/topology/thread_siblings_list").read_text() for cpu in ONLINE}
    if any(len(parse_cpuset(text)) > 1 for text in lists.values()):
        return {}
    shown = {}
    ordered = sorted(ONLINE)
    for pair in zip(ordered[::2], ordered[1::2], strict=False):
        core = (CPU_FOLDER / f"cpu{pair[0]}/topology/core_id").read_text()
        for cpu in pair:
            topology = CPU_FOLDER / f"cpu{cpu}" / "topology"
            shown[str(topology / "core_id")] = core
            for name in ("thread_siblings_list", "core_cpus_list"):
                shown[str(topology / name)] = format_cpuset(pair) + "\n"
    return shown
