import pytest

from hetsched.adapters.traces.openb import looks_like_openb, read_nodes, read_pods
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.workload import GpuDemand

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
SHORT = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"


def pods(*rows: str, header: str = PODS) -> tuple:  # type: ignore[type-arg]
    tail = ",LS,Running,0,12537496,0" if header == PODS else ""
    return read_pods((header + "".join(f"{row}{tail}\n" for row in rows)).encode(), "pods.csv").pending


@pytest.mark.parametrize(
    ("start", "kind"),
    [(NODES, "nodes"), (PODS, "pods"), (SHORT, "pods"), ("\ufeff" + NODES, "nodes"), ("{}", None), ("", None)],
)
def test_lists_are_known_by_their_header(start: str, kind: str | None) -> None:
    assert looks_like_openb(start.encode()) == kind


def test_node_row_is_read() -> None:
    (node,) = read_nodes(f"{NODES}openb-node-0228,96000,786432,2,V100M32\n".encode(), "nodes.csv").nodes
    assert (node.name, node.allocatable) == ("openb-node-0228", {"cpu": 96000, "memory": 786432 * 2**20})
    assert (node.isa.native, node.labels) == ("amd64", {"kubernetes.io/arch": "amd64"})
    # The table: V100-SXM2-32GB shows 32510 MiB and has 5120 cores.
    assert [(c.index, c.model, c.vendor, c.memory_mib, c.cores) for c in node.gpus or ()] == [
        (0, "V100M32", "nvidia", 32510, 5120),
        (1, "V100M32", "nvidia", 32510, 5120),
    ]


def test_hidden_models_are_unknown_and_a_node_without_cards_has_none() -> None:
    hidden, plain = read_nodes(f"{NODES}a,1000,1024,1,G2\nb,1000,1024,0,\n".encode(), "nodes.csv").nodes
    assert [(card.model, card.memory_mib, card.cores) for card in hidden.gpus or ()] == [("G2", None, None)]
    assert plain.gpus == ()


@pytest.mark.parametrize(
    ("row", "gpu"),
    [
        ("p,6000,12288,1,460,", GpuDemand(1, 460)),
        ("p,6000,12288,1,1000,T4", GpuDemand(1, 1000, models=("T4",), exact_models=True)),
        ("p,6000,12288,8,1000,V100M16|V100M32", GpuDemand(8, models=("V100M16", "V100M32"), exact_models=True)),
        ("p,6000,12288,0,0,", None),
        ("p,6000,12288,0,1000,", None),
    ],
)
def test_pod_row_is_read(row: str, gpu: GpuDemand | None) -> None:
    (pod,) = pods(row)
    assert (pod.key, pod.priority, pod.qos) == ("default/p", 0, "Guaranteed")
    assert pod.shape.requests == (("cpu", 6000), ("memory", 12288 * 2**20), ("pods", 1))
    assert pod.shape.gpu == gpu


def test_lists_may_stop_after_five_columns() -> None:
    (pod,) = pods("p,1000,1024,1,500", header=SHORT)
    assert pod.shape.gpu == GpuDemand(1, 500)


def test_equal_rows_share_one_shape_and_keep_their_order() -> None:
    found = pods("b,1000,1024,0,0,", "a,1000,1024,0,0,", "c,2000,1024,0,0,")
    assert [pod.name for pod in found] == ["b", "a", "c"]
    assert found[0].shape is found[1].shape
    assert found[0].shape != found[2].shape


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ("p,-1,1024,0,0,", "pods.csv:2 cpu_milli"),
        ("p,1.5,1024,0,0,", "pods.csv:2 cpu_milli"),
        ("p,1000,,0,0,", "pods.csv:2 memory_mib"),
        ("p,1000,1024,65,1000,", "pods.csv:2 num_gpu"),
        ("p,1000,1024,1,1001,", "pods.csv:2 gpu_milli"),
        ("p,1000,1024,1,0,", "pods.csv:2 gpu_milli"),
        ("p,1000,1024,2,500,", "pods.csv:2 gpu_milli"),
        ("p,1000,1024,1,500,T4||P100", "pods.csv:2 gpu_spec"),
        ("P,1000,1024,0,0,", "pods.csv:2 name"),
        (",1000,1024,0,0,", "pods.csv:2 name"),
        ("p,1000,1024,0,0", "pods.csv:2 name"),
        ("p,1000,1024,0,0,,", "pods.csv:2 name"),
        ("p,999999999999999999999,1024,0,0,", "pods.csv:2 cpu_milli"),
        ("p,\u0661,1024,0,0,", "pods.csv:2 cpu_milli"),
        ('"p,1000,1024,0,0,', "pods.csv:2"),
    ],
)
def test_wrong_pod_row_names_line_and_column(row: str, place: str) -> None:
    with pytest.raises(InputError) as refused:
        pods(row)
    assert (refused.value.code, refused.value.place) == ("TraceRowInvalid", place)


@pytest.mark.parametrize(
    ("rows", "place"),
    [
        ("a,1000,1024,1,\n", "nodes.csv:2 model"),
        ("a,1000,1024,x,T4\n", "nodes.csv:2 gpu"),
        ("a,1000,1024,0,\na,1000,1024,0,\n", "nodes.csv:3 sn"),
        ("a,1000,1024,0,\n\nb,1000,1024,0\n", "nodes.csv:4 sn"),
    ],
)
def test_wrong_node_row_names_line_and_column(rows: str, place: str) -> None:
    with pytest.raises(InputError) as refused:
        read_nodes((NODES + rows).encode(), "nodes.csv")
    assert refused.value.place == place


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("sn,cpu_milli,memory_mib,gpu\n", "TraceHeaderInvalid"),
        ("sn,cpu_milli,memory_mib,gpu,model,sn\n", "TraceHeaderInvalid"),
        (NODES, "ManifestEmpty"),
        (NODES + "a,1,1,0,\0\n", "TextHasNul"),
        (NODES + "\udcff", "ManifestNotUtf8"),
    ],
)
def test_other_file_is_rejected(text: str, code: str) -> None:
    with pytest.raises(InputError) as refused:
        read_nodes(text.encode("utf-8", "surrogateescape"), "nodes.csv")
    assert refused.value.code == code
