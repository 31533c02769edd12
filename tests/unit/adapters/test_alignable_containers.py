"""Containers with requests that a node can align: whole CPUs with an equal limit, or GPUs."""

from hetsched.adapters.files import parse_cluster
from hetsched.adapters.objects.export.cluster import compact_pods, write_cluster
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.workload import ContainerDemand, NumaDemand
from tests.builders import a_pod
from tests.unit.adapters.reading import content, pod, pod_text

GIB = 2**30


def containers(*resources: str) -> str:
    lines = [f"- {{name: c{i}, resources: {text}}}" for i, text in enumerate(resources)]
    return "\n".join(["containers:", *lines])


def test_whole_cpus_with_an_equal_limit() -> None:
    found = pod(containers("{limits: {cpu: 2, memory: 1Gi}}", "{requests: {cpu: 2000m}, limits: {cpu: '2'}}")).shape
    assert found.containers == (ContainerDemand(2, GIB), ContainerDemand(2, 0))


def test_parts_of_cpus_and_requests_below_the_limit_are_left_out() -> None:
    texts = ("{limits: {cpu: 2500m}}", "{requests: {cpu: 1}, limits: {cpu: 2}}", "{requests: {cpu: 2}}", "{}")
    assert pod(containers(*texts)).shape.containers == ()


def test_cards_of_either_vendor() -> None:
    found = pod(containers("{limits: {nvidia.com/gpu: 2, cpu: 500m}}", "{limits: {amd.com/gpu: 1}}")).shape
    assert found.containers == (ContainerDemand(0, 0, 2), ContainerDemand(0, 0, 1))


def test_init_containers_come_first_and_sidecars_stay() -> None:
    text = """
        initContainers:
        - {name: i, resources: {limits: {cpu: 3}}}
        - {name: s, restartPolicy: Always, resources: {limits: {cpu: 1}}}
        containers:
        - {name: c, resources: {limits: {cpu: 2}}}
    """
    assert pod(text).shape.containers == (ContainerDemand(3, init=True), ContainerDemand(1), ContainerDemand(2))


def test_only_guaranteed_pods_get_exclusive_cpus_from_the_kubelet() -> None:
    whole, part = "{limits: {cpu: 2, memory: 1Gi}}", "{limits: {cpu: 500m, memory: 1Gi}}"
    assert pod(containers(whole, part)).shape.guaranteed
    assert not pod(containers(whole, "{limits: {cpu: 500m}}")).shape.guaranteed  # Burstable: no memory limit
    assert not pod(containers(part)).shape.guaranteed  # Guaranteed, but no whole CPUs


def test_daemon_set_pod_is_not_restricted_by_zones() -> None:
    text = """
        apiVersion: v1
        kind: Pod
        metadata:
          name: p
          annotations: {topology.crane.io/topology-awareness: "true"}
          ownerReferences: [{kind: DaemonSet, name: d, controller: true}]
        spec:
          containers: [{name: c, resources: {limits: {cpu: 2}}}]
    """
    found = content(text).pending[0].shape
    assert (found.numa, found.containers) == (NumaDemand(None, "none"), (ContainerDemand(2),))
    assert content(text.replace("DaemonSet", "Job")).pending[0].shape.numa == NumaDemand(True, "none")


def test_export_keeps_several_alignable_containers() -> None:
    two = pod_text(containers("{limits: {cpu: 2, memory: 1Gi}}", "{limits: {cpu: 1, memory: 1Gi}}"), name="two")
    part = pod_text(containers("{limits: {cpu: 1, memory: 1Gi}}", "{limits: {cpu: 500m, memory: 1Gi}}"), name="part")
    found = content(f"{two}---\n{part}")
    text = write_cluster(found)
    assert text.count(b"hetsched.io/export-containers") == 2
    assert parse_cluster([("again.json", text)]).pending == found.pending


def test_export_has_no_redundant_containers() -> None:
    (plain,) = compact_pods(ClusterContent(pending=(a_pod("p").cpu(6).guaranteed().build(),)))
    assert "annotations" not in plain["metadata"]
