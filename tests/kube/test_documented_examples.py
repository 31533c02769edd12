"""`docs/examples` applied with kubectl on a real API server: pods get nodes, wrong ones a message."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.models import Decision
from hetsched.placement.queries.invariants import check_invariants
from hetsched.policies.models import PolicyObject
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from tests.kube import kinds
from tests.kube.control_plane import ControlPlane, find
from tests.kube.scene import an_informer, eventually, pod_of, states
from workers import report, schedule

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
PODS = ["gang-0", "gang-1", "gpu", "numa", "plain", "ring-0", "ring-1", "riscv", "wrong"]
Kubectl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module", autouse=True)
def served(plane: ControlPlane) -> Iterator[None]:
    with kinds.installed(plane, [*kinds.ours(), *kinds.theirs()]):
        yield


@pytest.fixture
def kubectl(plane: ControlPlane, tmp_path: Path) -> Kubectl:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(plane.kubeconfig()))
    program = find("kubectl")
    assert program is not None

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(program), f"--kubeconfig={kubeconfig}", f"--cache-dir={tmp_path}", *words]
        return subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=False)

    return run


def apply(kubectl: Kubectl, *names: str) -> None:
    done = kubectl("apply", "--validate=strict", *(f"--filename={name}.yaml" for name in names))
    assert done.returncode == 0, done.stderr


@pytest.fixture
def follower(api: Api, cluster: Cluster, kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    for worker in (binding_cycle, report):
        monkeypatch.setattr(worker, "api_of", lambda _: api)
    apply(kubectl, "nodes", "numa-zones")
    running = an_informer(api, cluster)
    eventually(running, lambda: Node.objects.count() == 4 and Node.objects.get(name="gpu-0").report.gpus is not None)
    eventually(running, lambda: Node.objects.get(name="numa-0").report.numa is not None)
    yield running
    running.ended.set()


def test_pods_get_nodes_and_invalid_ones_get_a_reason(
    api: Api, cluster: Cluster, follower: Informer, kubectl: Kubectl
) -> None:
    apply(kubectl, "plain", "riscv", "gpu", "numa", "gang", "gang-rack", "wrong-pod")
    eventually(follower, lambda: sorted(states()) == PODS)
    follower._write_sync()
    schedule.run(cluster.pk)
    binding_cycle.run(cluster.pk)
    report.run(cluster.pk)
    found = {name: pod_of(api, name) for name in PODS}
    nodes = {name: pod["spec"].get("nodeName", "") for name, pod in found.items()}
    assert (nodes["riscv"], nodes["gpu"], nodes["numa"], nodes["wrong"]) == ("riscv-0", "gpu-0", "numa-0", "")
    assert all(node for name, node in nodes.items() if name != "wrong")
    racks = {Node.objects.get(name=nodes[name]).report.labels["example.com/rack"] for name in ("ring-0", "ring-1")}
    assert len(racks) == 1

    def held(name: str) -> dict[str, Any]:
        allocation: dict[str, Any] = json.loads(found[name]["metadata"]["annotations"]["hetsched.io/allocation"])
        return allocation

    assert held("riscv")["isa"]["mode"] == "native"
    (card,) = held("gpu")["gpus"]
    assert (card["milli"], card["memoryMiB"]) == (500, 30000)
    (zone,) = held("numa")["zones"]
    assert held("numa")["cpus"] == zone["cpus"]
    assert zone["name"] in ("node-0", "node-1")
    sentence = Decision.objects.get(pod__name="wrong").summary
    assert "gpu-milli" in sentence
    assert sentence.count(". ") == 0
    assert sentence in kubectl("describe", "pod", "wrong").stdout
    assert f"default/plain to {nodes['plain']}" in kubectl("describe", "pod", "plain").stdout
    assert check_invariants() == []


def test_pod_is_placed_by_the_policy_of_the_cluster(
    api: Api, cluster: Cluster, follower: Informer, kubectl: Kubectl
) -> None:
    apply(kubectl, "policy")
    try:
        eventually(follower, lambda: PolicyObject.objects.exists() and states() == {"dense": "pending"})
        schedule.run(cluster.pk)
        report.run(cluster.pk)
        assert Decision.objects.get(pod__name="dense").policy_name == "dense"
        shown = kubectl("get", "spol", "dense", "--no-headers").stdout.split()
        assert shown[:3] == ["dense", "True", "1"]
    finally:
        kubectl("delete", "--filename=policy.yaml", "--grace-period=0", "--force")


def test_invalid_gpu_requests_are_rejected_with_their_fields(kubectl: Kubectl) -> None:
    done = kubectl("apply", "--filename=wrong-cards.yaml")
    assert done.returncode != 0
    assert "spec.cards[0].memoryMiB" in done.stderr
    assert "spec.cards[2]" in done.stderr


def test_page_names_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text()
    assert [path.name for path in sorted(EXAMPLES.glob("*.yaml")) if f"`{path.name}`" not in page] == []
