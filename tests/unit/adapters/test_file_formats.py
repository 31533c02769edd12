import pytest

from hetsched.adapters.files import parse_cluster, parse_workload
from hetsched.adapters.objects.documents import MAX_BYTES
from hetsched.contracts.errors import InputError
from tests.unit.adapters.reading import pod_text

NODE = b"{apiVersion: v1, kind: Node, metadata: {name: n}}"
TRACE_NODES = b"sn,cpu_milli,memory_mib,gpu,model\nt,1000,1024,0,\n"
TRACE_PODS = b"name,cpu_milli,memory_mib,num_gpu,gpu_milli\nq,1000,1024,0,0\n"
HIGH = b"{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 9}"


def test_file_name_does_not_determine_the_format() -> None:
    nodes = parse_cluster([("a.csv", NODE), ("b.yaml", TRACE_NODES)]).nodes
    assert [node.name for node in nodes] == ["n", "t"]
    sources = [("c.txt", TRACE_PODS), ("d.json", pod_text().encode())]
    assert [pod.name for pod in parse_workload(sources).pending] == ["p", "q"]


def test_several_files_are_one_bag_of_objects() -> None:
    pod = pod_text("priorityClassName: high").encode()
    assert parse_workload([("pod", pod), ("class", HIGH)]).pending[0].priority == 9


def test_workload_may_reference_objects_of_the_cluster() -> None:
    pod = pod_text("priorityClassName: high").encode()
    assert parse_workload([("pod", pod)], known=parse_cluster([("class", HIGH)])).pending[0].priority == 9


@pytest.mark.parametrize(
    "sources",
    [
        [("a", NODE), ("b", NODE)],
        [("a", TRACE_NODES), ("b", TRACE_NODES)],
        [("a", NODE), ("b", TRACE_NODES.replace(b"\nt,", b"\nn,"))],
    ],
)
def test_duplicate_object_in_two_files_is_rejected(sources: list[tuple[str, bytes]]) -> None:
    with pytest.raises(InputError) as refused:
        parse_cluster(sources)
    assert refused.value.code == "ObjectDuplicate"


def test_trace_lists_are_rejected_for_the_other_argument() -> None:
    with pytest.raises(InputError) as refused:
        parse_cluster([("pods.csv", TRACE_PODS)])
    assert (refused.value.code, refused.value.place) == ("WrongFile", "pods.csv")
    with pytest.raises(InputError) as refused:
        parse_workload([("nodes.csv", TRACE_NODES)])
    assert (refused.value.code, refused.value.place) == ("WrongFile", "nodes.csv")


@pytest.mark.parametrize("start", [b"# ", TRACE_NODES])
def test_oversized_file_is_rejected(start: bytes) -> None:
    with pytest.raises(InputError) as refused:
        parse_cluster([("big", start + b"x" * MAX_BYTES)])
    assert refused.value.code == "ManifestTooLarge"
