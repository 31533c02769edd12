import json
from collections.abc import Iterable

from hypothesis import given, settings

from hetsched.adapters.objects.documents import load_documents
from hetsched.adapters.objects.export.cluster import compact_pods, write_cluster
from hetsched.adapters.objects.manifests import read_content
from hetsched.adapters.traces.simulated_fleet import demo_cluster
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.node_report import Usage
from hetsched.engine.cluster.state import ClusterState
from tests.builders import a_node, a_pod
from tests.unit.adapters.drawn_objects import CLUSTERS, Plain
from tests.unit.adapters.reading import content, pod_text


def read(data: bytes, *, workload: bool = False) -> ClusterContent:
    return read_content(load_documents(data, name="f"), workload=workload)


def listed(objects: Iterable[Plain]) -> bytes:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}).encode()


@settings(max_examples=200)
@given(CLUSTERS)
def test_any_parsed_content(objects: list[Plain]) -> None:
    found = read(listed(objects))
    again = read(write_cluster(found))
    assert again.nodes == found.nodes
    assert again.running + again.pending == found.running + found.pending
    assert again == found


@settings(max_examples=100)
@given(CLUSTERS)
def test_compact_pods_keep_shape_and_problems(objects: list[Plain]) -> None:
    found = read(listed(objects)).pending
    again = read(listed(compact_pods(ClusterContent(pending=found))), workload=True).pending
    assert [(p.key, p.shape, p.problems) for p in again] == [(p.key, p.shape, p.problems) for p in found]


def test_demo_fleet_round_trips() -> None:
    found = demo_cluster(7)
    assert read(write_cluster(found)) == found


def test_empty_content_round_trip() -> None:
    assert read(write_cluster(ClusterContent())) == ClusterContent()


def test_facts_that_no_label_states_come_back_as_annotations() -> None:
    node = a_node("n").arch("riscv64").isa("rv64gcv", emulated=("arm64",), cross=("amd64", "arm64")).build()
    (again,) = read(write_cluster(ClusterContent(nodes=(node,)))).nodes
    assert again.isa == node.isa


def test_invalid_request_stays_invalid() -> None:
    found = content(pod_text("nodeSelector: {kubernetes.io/arch: arm64}", annotations={"hetsched.io/isa": "z80"}))
    again = read(write_cluster(found))
    # Parsed as new, the selector would have become the requirement.
    assert again.pending[0].shape.isa is None
    assert again.pending == found.pending


def test_exact_models_and_shares_survive_the_compact_form() -> None:
    pod = a_pod("p").cpu(6).memory("12Gi").gpu(1, milli=460, model="T4|P100", exact=True).guaranteed().build()
    (plain,) = compact_pods(ClusterContent(pending=(pod,)))
    assert plain == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "annotations": {
                "oks/gpu-number": "1",
                "hetsched.io/gpu-milli": "460",
                "hetsched.io/gpu-model": "T4|P100",
                "hetsched.io/gpu-model-match": "exact",
            },
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "resources": {
                        "requests": {"cpu": "6", "memory": "12Gi"},
                        "limits": {"cpu": "6", "memory": "12Gi"},
                    },
                }
            ]
        },
    }


def test_expired_sample_stays_expired() -> None:
    late = Usage({"cpu": 700}, "2026-11-20T10:00:00Z", "prometheus", stale=True)
    again = read(write_cluster(ClusterContent(nodes=(a_node("n1").having(usage=late).build(),))))
    assert again.nodes[0].usage == late
    assert ClusterState.of(again).stale() == ["n1"]
