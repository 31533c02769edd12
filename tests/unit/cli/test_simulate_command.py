"""`hetsched simulate`: each pod once in queue order, one result per policy, the contract's document."""

from pathlib import Path

import pytest

from tests.builders import a_node, a_pod
from tests.unit.cli.calling import cluster_file, document, run, workload_file

NODES = """sn,cpu_milli,memory_mib,gpu,model
openb-node-0000,8000,16384,2,T4
openb-node-0001,16000,32768,0,
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0000,4000,4096,1,500,,LS,Running,0,10,1
openb-pod-0001,2000,4096,1,1000,T4,LS,Running,0,10,1
openb-pod-0002,1000,1024,1,1000,V100M16,LS,Running,0,10,1
openb-pod-0003,8000,8192,0,0,,BE,Pending,0,10,
"""


@pytest.fixture
def trace(tmp_path: Path) -> list[str | Path]:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    return ["simulate", "--cluster", tmp_path / "nodes.csv", "--workload", tmp_path / "pods.csv"]


def test_openb_trace_gives_the_contract_document(trace: list[str | Path]) -> None:
    found = document(run(*trace, "--policy", "first-fit", "-o", "json"))
    (result,) = found["results"]
    assert set(result) == {"policy", "placed", "pending", "placements", "metrics", "decisionsPerSecond"}
    assert (result["policy"], result["placed"], result["pending"]) == ("first-fit", 3, 1)
    # First fit: 4 + 2 CPUs and 500 + 1000 milli on the card node; no V100 anywhere; 8 CPUs only fit the other node.
    assert [(row["pod"], row["node"]) for row in result["placements"]] == [
        ("default/openb-pod-0000", "openb-node-0000"),
        ("default/openb-pod-0001", "openb-node-0000"),
        ("default/openb-pod-0002", None),
        ("default/openb-pod-0003", "openb-node-0001"),
    ]
    metrics = result["metrics"]
    # CPU 14 of 24, memory 16 of 48 GiB, 1500 of 2000 milli.
    assert metrics["cpuUtilization"] == pytest.approx(14 / 24)
    assert metrics["memoryUtilization"] == pytest.approx(16 / 48)
    assert metrics["gpuAllocation"] == 0.75
    assert metrics["unallocatedGpus"] == 0.5
    assert set(metrics) >= {"gpuFragmentation", "balance"}


def test_one_result_per_policy_in_argument_order(trace: list[str | Path]) -> None:
    found = document(run(*trace, "--policy", "spread", "--policy", "best-fit", "-o", "json"))
    assert [result["policy"] for result in found["results"]] == ["spread", "best-fit"]


def test_default_policy_is_used_without_an_option(trace: list[str | Path]) -> None:
    assert [result["policy"] for result in document(run(*trace, "-o", "json"))["results"]] == ["hetsched"]


def test_two_runs_differ_only_in_speed(trace: list[str | Path]) -> None:
    first, second = (document(run(*trace, "--policy", "random", "-o", "json")) for _ in range(2))
    for found in (first, second):
        # The first run of a version compiles the loop, which may take longer than ten seconds for each of these pods.
        assert found["results"][0].pop("decisionsPerSecond") >= 0
    assert first == second


def test_queue_order_is_priority_then_file_order(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod("b"), a_pod("a"), a_pod("urgent").priority(5))
    found = document(run("simulate", "--cluster", cluster_file(tmp_path, a_node()), "--workload", pods, "-o", "json"))
    order = [row["pod"] for row in found["results"][0]["placements"]]
    assert order == ["default/urgent", "default/b", "default/a"]


def test_cluster_without_gpus_has_no_gpu_metrics(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod())
    found = document(run("simulate", "--cluster", cluster_file(tmp_path, a_node()), "--workload", pods, "-o", "json"))
    metrics = found["results"][0]["metrics"]
    assert metrics["gpuAllocation"] is None
    assert metrics["gpuFragmentation"] is None
    assert metrics["unallocatedGpus"] == 0


def test_misconfigured_pod_stays_pending(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod("wrong").wrong(), a_pod("right"))
    found = document(run("simulate", "--cluster", cluster_file(tmp_path, a_node()), "--workload", pods, "-o", "json"))
    assert (found["results"][0]["placed"], found["results"][0]["pending"]) == (1, 1)


def test_arrival_overloads_the_cluster_repeatably(trace: list[str | Path]) -> None:
    found = [document(run(*trace, "--arrival", "3", "--seed", seed, "-o", "json")) for seed in ("7", "7", "8")]
    streams = [[row["pod"] for row in item["results"][0]["placements"]] for item in found]
    # Two cards: the stream ends with the pod that brings 3 x 2000 milli; the list itself has 2500.
    assert len(streams[0]) > 4
    assert streams[0] == streams[1]
    assert streams[0] != streams[2]


def test_text_is_one_table(trace: list[str | Path]) -> None:
    text = run(*trace, "--policy", "first-fit", "--policy", "random").stdout
    assert text.startswith("4 pods on 2 nodes")
    assert "75.00%" in text
    assert "\x1b[" not in text


def test_report_has_a_page_and_csv_files(trace: list[str | Path], tmp_path: Path) -> None:
    folder = tmp_path / "out" / "report"
    result = run(*trace, "--policy", "first-fit", "--policy", "spread", "--report", folder, "-o", "json")
    assert result.exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "index.html",
        "placements.csv",
        "samples.csv",
        "summary.csv",
    ]
    page = (folder / "index.html").read_text()
    assert "<svg" in page
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert (folder / "placements.csv").read_text().splitlines()[1] == (
        "default/openb-pod-0000,openb-node-0000,openb-node-0000"
    )


def test_unusable_report_folder_is_rejected_before_the_run(trace: list[str | Path], tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    result = run(*trace, "--report", tmp_path / "taken", "-o", "json")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "ReportFolderUnusable" in result.stderr


def test_quotas_of_the_cluster_file_are_borrowed_and_reclaimed(tmp_path: Path) -> None:
    # Capacity scheduling's own example: 8 CPUs, min 4 and max 6 for each of two teams, pods of 2 CPUs.
    quota = "apiVersion: scheduling.x-k8s.io/v1alpha1\nkind: ElasticQuota\nmetadata: {{name: q, namespace: {0}}}\n"
    quota += "spec: {{min: {{cpu: 4}}, max: {{cpu: 6}}}}\n---\n"
    node = (
        "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n"
        'status: {allocatable: {cpu: "8", memory: 32Gi, pods: "9"}, conditions: [{type: Ready, status: "True"}]}\n---\n'
    )
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{1}, namespace: {0}}}\n"
    pod += 'spec: {{containers: [{{name: c, image: i, resources: {{requests: {{cpu: "2", memory: 1Gi}}}}}}]}}\n---\n'
    policy = "apiVersion: hetsched.io/v1alpha1\nkind: SchedulingPolicy\nmetadata: {name: teams}\n"
    policy += "spec: {plugins: [{name: quota}, {name: resource-fit}, {name: preemption}]}\n"
    (tmp_path / "cluster.yaml").write_text(node + quota.format("q1") + quota.format("q2"))
    (tmp_path / "pods.yaml").write_text(
        "".join(pod.format(team, number) for team, count in (("q1", 4), ("q2", 2)) for number in range(count))
    )
    (tmp_path / "teams.yaml").write_text(policy)
    files = ("--cluster", tmp_path / "cluster.yaml", "--workload", tmp_path / "pods.yaml")
    (result,) = document(run("simulate", *files, "--policy", tmp_path / "teams.yaml", "-o", "json"))["results"]
    # q1 runs three and pends one; q2's first takes the 2 CPUs left, its second gets back what q1 borrowed.
    assert {row["pod"]: row["node"] for row in result["placements"]} == {
        "q1/p0": "n", "q1/p1": "n", "q1/p2": None, "q1/p3": None, "q2/p0": "n", "q2/p1": "n",
    }  # fmt: skip
