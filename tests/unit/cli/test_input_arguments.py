"""Inputs of the offline commands: several files, standard input, policies by name, by file and by the pods."""

from pathlib import Path

from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from tests.builders import a_node, a_pod
from tests.unit.cli.calling import cluster_file, document, run, workload_file

# Equal nodes except for their size: least-allocated prefers the large one, the first by name is the small one.
SMALL, LARGE = a_node("a-small").cpu(4), a_node("b-large").cpu(64)


def test_several_files_are_one_bag_of_objects(tmp_path: Path) -> None:
    nodes = [cluster_file(folder, node) for folder, node in zip(_folders(tmp_path), (SMALL, LARGE), strict=True)]
    pods = [workload_file(tmp_path, a_pod(name), name=f"{name}.json") for name in ("x", "y")]
    options = [word for path in nodes for word in ("--cluster", path)] + [
        word for path in pods for word in ("-f", path)
    ]
    found = document(run("whatif", *options, "-o", "json"))
    assert [item["pod"] for item in found["placements"]] == ["default/x", "default/y"]


def test_standard_input_is_a_dash(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod("web"))
    result = run("whatif", "-f", "-", "--cluster", cluster_file(tmp_path), stdin=pods.read_bytes())
    assert result.exit_code == 0


def test_policy_is_selected_by_name(tmp_path: Path) -> None:
    inputs = ["whatif", "-f", workload_file(tmp_path, a_pod()), "--cluster", cluster_file(tmp_path, SMALL, LARGE)]
    nodes = {
        name: document(run(*inputs, "--policy", name, "-o", "json"))["placements"][0]["node"]
        for name in ("first-fit", "spread")
    }
    assert nodes == {"first-fit": "a-small", "spread": "b-large"}


def test_policy_is_read_from_a_file(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("""
apiVersion: hetsched.io/v1alpha1
kind: SchedulingPolicy
metadata: {name: mine}
spec:
  plugins:
  - {name: resource-fit}
  - {name: least-allocated, weight: 2, params: {memory: 0}}
  ties: {by: name}
""")
    inputs = ["whatif", "-f", workload_file(tmp_path, a_pod()), "--cluster", cluster_file(tmp_path, SMALL, LARGE)]
    found = document(run(*inputs, "--policy", policy, "-o", "json"))
    assert found["policy"]["name"] == "mine"
    assert found["placements"][0]["node"] == "b-large"


def test_policy_of_the_cluster_file_is_selected_by_name(tmp_path: Path) -> None:
    spec = PolicySpec("house", (PluginUse("resource-fit"),))
    cluster = tmp_path / "cluster.json"
    cluster.write_bytes(write_cluster(ClusterContent(nodes=(SMALL.build(), LARGE.build()), policies=(spec,))))
    found = document(
        run("whatif", "-f", workload_file(tmp_path, a_pod()), "--cluster", cluster, "--policy", "house", "-o", "json")
    )
    assert found["policy"]["name"] == "house"


def test_policy_option_overrides_the_pods_policy(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod().policy("first-fit"))
    inputs = ["whatif", "-f", pods, "--cluster", cluster_file(tmp_path), "-o", "json"]
    assert document(run(*inputs))["policy"]["name"] == "first-fit"
    assert document(run(*inputs, "--policy", "spread"))["policy"]["name"] == "spread"


def test_no_preempt_is_accepted_and_evicts_nothing(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod().cpu(4).priority(100))
    result = run("whatif", "-f", pods, "--cluster", cluster_file(tmp_path), "--no-preempt", "-o", "json")
    assert document(result)["evictions"] == []


def _folders(parent: Path) -> list[Path]:
    folders = [parent / "first", parent / "second"]
    for folder in folders:
        folder.mkdir()
    return folders
