"""The CRDs of `deploy/crds` on a real API server accept and reject the same objects as the adapters."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api, ApiFailure, Resource
from hetsched.adapters.kubernetes.resources import NODE_GPUS, NODE_USAGES
from hetsched.adapters.kubernetes.resources import SCHEDULING_POLICIES as POLICIES
from hetsched.adapters.objects.documents import Document
from hetsched.adapters.objects.manifests import read_content
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.node_report import CardLink, GpuCard
from hetsched.inventory.models import Cluster, Node, Sync
from tests.kube import kinds
from tests.kube.control_plane import ControlPlane, find
from tests.kube.scene import an_informer, eventually, make_node

pytestmark = pytest.mark.needs("etcd", "kube-apiserver")
CARDS = [
    {
        "index": 0, "uuid": "GPU-a", "model": "A100-SXM4-80GB", "memoryMiB": 81920, "cores": 6912, "fp32Tflops": 19.5,
        "bandwidthGBs": 2039, "clockMHz": 1410, "numaZone": "node-0", "healthy": True,
        "links": [{"to": 1, "kind": "nvlink", "bandwidthGBs": 300}],
    },
    {"index": 1, "uuid": "GPU-b", "model": "A100-SXM4-80GB", "healthy": False},
]  # fmt: skip
USAGE = {"cpu": "3500m", "memory": "512Mi", "hetsched.io/network-mbps": "40", "hetsched.io/disk-mbps": 5}
PLUGINS = [
    {"name": "resource-fit"},
    {
        "name": "binpack", "weight": 2.5,
        "params": {"shape": [[0, 0], [100, 10]], "resources": {"cpu": 1, "nvidia.com/gpu": 1}},
    },
]  # fmt: skip
OBSERVED = "2026-11-20T10:00:00Z"


def node_gpu(cards: Any = CARDS) -> dict[str, Any]:
    return {"spec": {"cards": cards}}


def node_usage(usage: Any = USAGE, observed: Any = OBSERVED) -> dict[str, Any]:
    return {"usage": usage, "observedAt": observed}


def policy(plugins: Any = PLUGINS, **more: Any) -> dict[str, Any]:
    return {"spec": {"plugins": plugins, **more}}


def plain(resource: Resource, name: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, **body}


def read_as_file(found: dict[str, Any]) -> Any:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": found["metadata"]["name"]}}
    return read_content([Document("file", 1, node), Document("file", 2, found)], workload=False)


@pytest.fixture(scope="module", autouse=True)
def definitions(plane: ControlPlane) -> Iterator[list[dict[str, Any]]]:
    with kinds.installed(plane, kinds.ours()) as found:
        yield found


def create(api: Api, resource: Resource, body: dict[str, Any], name: str = "n1", *, dry: bool = True) -> Any:
    """Create an object, by default as a dry run, and return the API server's version of it."""
    query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry else {})}
    return json.loads(api.send("POST", resource.path(), json.dumps(plain(resource, name, body)).encode(), query=query))


def test_crds_are_structural_and_established(definitions: list[dict[str, Any]]) -> None:
    assert [found["spec"]["names"]["kind"] for found in definitions] == ["NodeGpu", "NodeUsage", "SchedulingPolicy"]
    for found in definitions:
        conditions = {condition["type"]: condition["status"] for condition in found["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize(
    ("resource", "body"),
    [
        (NODE_GPUS, node_gpu()),
        (NODE_GPUS, node_gpu([])),
        (NODE_GPUS, node_gpu([{"index": index, "uuid": f"GPU-{index}"} for index in range(256)])),
        (NODE_USAGES, node_usage()),
        (NODE_USAGES, node_usage({"cpu": 3, "memory": "1e3", "ephemeral-storage": "1.5Gi"}, None)),
        (POLICIES, policy()),
        (POLICIES, policy(ties={"by": "random", "seed": 2**63 - 1}, description="Fill cards", version=3)),
    ],
)
def test_accepted_objects_are_stored_whole_and_read(api: Api, resource: Resource, body: dict[str, Any]) -> None:
    found = create(api, resource, body)
    kept = {key: value for key, value in body.items() if key != "observedAt" or value}
    assert {key: found[key] for key in kept} == kept
    assert read_as_file(found) == read_as_file(plain(resource, "n1", kept))


WRONG: list[tuple[Resource, dict[str, Any], str]] = [
    (NODE_GPUS, {}, "spec"),
    (NODE_GPUS, {"spec": {}}, "spec.cards"),
    (NODE_GPUS, node_gpu([{}]), "spec.cards[0].index"),
    (NODE_GPUS, node_gpu([{"index": 0}, {"index": 0}]), "spec.cards[1]"),
    (NODE_GPUS, node_gpu([{"index": 256}]), "spec.cards[0].index"),
    (NODE_GPUS, node_gpu([{"index": -1}]), "spec.cards[0].index"),
    (NODE_GPUS, node_gpu([{"index": 0, "uuid": "x"}, {"index": 1, "uuid": "x"}]), "spec.cards"),
    (NODE_GPUS, node_gpu([{"index": 0, "uuid": "x" * 121}]), "spec.cards[0].uuid"),
    (NODE_GPUS, node_gpu([{"index": 0, "memoryMiB": -1}]), "spec.cards[0].memoryMiB"),
    (NODE_GPUS, node_gpu([{"index": 0, "memoryMiB": 2**40 + 1}]), "spec.cards[0].memoryMiB"),
    (NODE_GPUS, node_gpu([{"index": 0, "memoryMiB": "80Gi"}]), "spec.cards[0].memoryMiB"),
    (NODE_GPUS, node_gpu([{"index": 0, "healthy": "yes"}]), "spec.cards[0].healthy"),
    (NODE_GPUS, node_gpu([{"index": 0, "links": [{"to": 0, "kind": "nvlink"}]}]), "spec.cards[0].links"),
    (NODE_GPUS, node_gpu([{"index": 0, "links": [{"to": 1, "kind": "rope"}]}]), "spec.cards[0].links[0].kind"),
    (
        NODE_GPUS,
        node_gpu([{"index": 0, "links": [{"to": 1, "kind": "zone"}, {"to": 1, "kind": "zone"}]}]),
        "spec.cards[0].links[1]",
    ),
    (NODE_USAGES, node_usage({"cpu": "-1"}), "usage[cpu]"),
    (NODE_USAGES, node_usage({"cpu": -1}), "usage[cpu]"),
    (NODE_USAGES, node_usage({"memory": "much"}), "usage[memory]"),
    (NODE_USAGES, node_usage({"memory": "9e15k"}), "usage[memory]"),
    (NODE_USAGES, node_usage({"hetsched.io/network-mbps": "1500m"}), "usage"),
    (NODE_USAGES, node_usage({"a b": "1"}), "usage"),
    (POLICIES, policy([]), "spec.plugins"),
    (POLICIES, policy([{"weight": 1}]), "spec.plugins[0].name"),
    (POLICIES, policy([{"name": "fgd"}, {"name": "fgd"}]), "spec.plugins"),
    (POLICIES, policy([{"name": "fgd", "weight": -1}]), "spec.plugins[0].weight"),
    (POLICIES, policy([{"name": "fgd", "weight": 1001}]), "spec.plugins[0].weight"),
    (POLICIES, policy([{"name": "fgd", "params": [1]}]), "spec.plugins[0].params"),
    (POLICIES, policy(ties={"by": "luck"}), "spec.ties.by"),
    (POLICIES, policy(ties={"seed": -1}), "spec.ties.seed"),
]


@pytest.mark.parametrize(("resource", "body", "place"), WRONG)
def test_object_rejected_by_the_adapters_is_rejected_at_its_field(
    api: Api, resource: Resource, body: dict[str, Any], place: str
) -> None:
    with pytest.raises(ApiFailure) as refused:
        create(api, resource, body)
    assert refused.value.status == 422
    assert f"{place}: " in refused.value.message
    if body.get("spec"):
        with pytest.raises(InputError):
            read_as_file(plain(resource, "n1", body))


def test_policy_names_are_label_values(api: Api) -> None:
    with pytest.raises(ApiFailure, match=r"metadata\.name"):
        create(api, POLICIES, policy(), name="a.b")


def test_unknown_field_is_named(api: Api) -> None:
    with pytest.raises(ApiFailure, match=r"unknown field \"spec\.cards\[0\]\.memory\""):
        create(api, NODE_GPUS, node_gpu([{"index": 0, "memory": 1}]))


@pytest.mark.parametrize(
    ("kind", "short", "resource", "body", "columns", "row"),
    [
        ("nodegpu", "ngpu", NODE_GPUS, node_gpu(), "NAME MODEL MEMORY MIB LAST CARD AGE", "n1 A100-SXM4-80GB 81920 1"),
        ("nodeusage", "nuse", NODE_USAGES, node_usage(), "NAME CPU MEMORY MBIT/S OBSERVED", "n1 3500m 512Mi 40"),
        ("schedulingpolicy", "spol", POLICIES, policy(description="Cards"),
         "NAME ACCEPTED VERSION FIRST TIES DESCRIPTION AGE", "n1 resource-fit Cards"),
    ],
)  # fmt: skip
def test_kubectl_prints_the_columns(
    api: Api, plane: ControlPlane, tmp_path: Path, kind: str, short: str, resource: Resource, body: dict[str, Any],
    columns: str, row: str,
) -> None:  # fmt: skip
    create(api, resource, body, dry=False)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(plane.kubeconfig()))
    program = find("kubectl")
    assert program is not None
    for name in (kind, short):
        shown = subprocess.run(
            [program, f"--kubeconfig={kubeconfig}", f"--cache-dir={tmp_path}", "get", name],
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        assert shown[0].split() == columns.split()
        assert shown[1].split()[: len(row.split())] == row.split()
    api.send("DELETE", resource.path(name="n1"))


@pytest.mark.django_db
def test_created_objects_become_facts_of_the_node(api: Api, cluster: Cluster) -> None:
    make_node(api, "n1")
    follower = an_informer(api, cluster)
    eventually(follower, lambda: Node.objects.count() == 1)
    assert Node.objects.get().report.gpus is None
    create(api, NODE_GPUS, node_gpu(), dry=False)
    create(api, NODE_USAGES, node_usage(), dry=False)
    eventually(follower, lambda: (r := Node.objects.get().report).gpus is not None and r.usage is not None)
    report = Node.objects.get().report
    first, second = report.gpus or ()
    assert first == GpuCard(
        0, "GPU-a", "A100-SXM4-80GB", "nvidia", 81920, 6912, 19.5, 2039.0, 1410, "node-0", True,
        (CardLink(1, "nvlink", 300.0),),
    )  # fmt: skip
    assert not second.healthy
    # 3500m CPU, 512 MiB = 536,870,912 bytes; Mbit/s and MB/s are unchanged.
    assert report.usage is not None
    assert report.usage.amounts == {
        "cpu": 3500, "memory": 512 * 2**20, "hetsched.io/network-mbps": 40, "hetsched.io/disk-mbps": 5,
    }  # fmt: skip
    api.send("DELETE", NODE_GPUS.path(name="n1"))
    eventually(follower, lambda: Node.objects.get().report.gpus is None)
    follower._write_sync()
    assert not any(sync.quarantined for sync in Sync.objects.all())
    api.send("DELETE", NODE_USAGES.path(name="n1"))
    follower.ended.set()
