"""The text of `hetsched whatif`: sentence, placements, reasons, funnel; no colour in a pipe."""

from pathlib import Path

from tests.builders import a_node, a_pod
from tests.unit.cli.calling import cluster_file, run, workload_file


def test_reasons_and_funnel_follow_the_verdict(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod("web").cpu(1), a_pod("vec").cpu(2).isa("rv64gcv"))
    text = run("whatif", "-f", pods, "--cluster", cluster_file(tmp_path)).stdout
    assert text.startswith("not-now  ")
    assert "default/web  " in text
    assert "IsaMissingExtension" in text
    # Two nodes, one without vectors, the other without capacity.
    assert "2 nodes > isa-match 1 > resource-fit 0" in text
    assert "\x1b[" not in text


def test_explain_shows_the_best_nodes_and_counts_the_rest(tmp_path: Path) -> None:
    cluster = cluster_file(tmp_path, *(a_node(f"n{number:02}") for number in range(13)))
    text = run("whatif", "-f", workload_file(tmp_path, a_pod()), "--cluster", cluster, "--explain").stdout
    assert "13 of 13 feasible" in text
    assert "n09" in text
    assert "n10" not in text
    assert "and 3 more" in text


def test_cards_and_isa_are_named(tmp_path: Path) -> None:
    node = a_node("gpu").isa("x86-64-v4").gpus(2)
    pods = workload_file(tmp_path, a_pod().gpu(1, milli=250).isa("x86-64-v3"))
    text = run("whatif", "-f", pods, "--cluster", cluster_file(tmp_path, node)).stdout
    assert "0:250m" in text
    assert "native: x86-64-v3 on x86-64-v4" in text


def test_node_with_two_rejections_is_counted_once_in_the_funnel(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod("web").cpu(900).memory("9000Gi"))
    text = run("whatif", "-f", pods, "--cluster", cluster_file(tmp_path)).stdout
    assert text.count("Insufficient") >= 2
    # Two nodes, both without vectors and capacity.
    assert "2 nodes > resource-fit 0" in text


def test_nearest_fit_follows_the_reasons(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod("web").cpu(900))
    cluster = cluster_file(tmp_path, a_node("small").cpu(4), a_node("large").cpu(64))
    text = run("whatif", "-f", pods, "--cluster", cluster).stdout
    assert "nearest fit: cpu 900 -> 64  on large  (resources.requests.cpu)" in text


def test_nearest_fit_names_both_changed_fields(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod("web").cpu(16).on_nodes_with(disk="ssd"))
    text = run("whatif", "-f", pods, "--cluster", cluster_file(tmp_path, a_node("n").cpu(8))).stdout
    assert (
        "nearest fit: cpu 16 -> 8 and remove nodeSelector disk=ssd  on n  (resources.requests.cpu, spec.nodeSelector)"
        in text
    )


def test_explain_prints_margin_and_tipping_points(tmp_path: Path) -> None:
    # The small node is preferred; without that preference the large one has more left.
    nodes = a_node("large").cpu(32).memory("128Gi"), a_node("small").cpu(4).memory("4Gi").labelled(disk="ssd")
    pods = workload_file(tmp_path, a_pod().preferring(100, "disk", "In", "ssd"))
    text = run("whatif", "-f", pods, "--cluster", cluster_file(tmp_path, *nodes), "--explain").stdout
    assert "small wins by " in text
    assert "large would win with node-affinity below " in text


def test_pinned_cpus_name_the_pods_on_their_cores(tmp_path: Path) -> None:
    node = a_node("n").cpu(4).zone("node-0", "0-3", siblings="0,2;1,3").kubelet("none", "none")
    pod = a_pod().guaranteed().cpu(4).numa(True, "exclusive")
    text = run("whatif", "-f", workload_file(tmp_path, pod), "--cluster", cluster_file(tmp_path, node)).stdout
    assert "default/pod on n: CPUs 0 and 2, both assigned to this pod, are threads of one core" in text


def test_omitted_controller_is_named_with_the_answer(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: proxy}}")
    pods = workload_file(tmp_path, a_pod())
    result = run("whatif", "-f", pods, "-f", tmp_path / "more.yaml", "--cluster", cluster_file(tmp_path, a_node()))
    assert "DaemonSet default/proxy is ignored" in result.stderr
    assert "DaemonSet" not in result.stdout


def test_evictions_are_named_unless_forbidden(tmp_path: Path) -> None:
    policy = tmp_path / "preempting.yaml"
    policy.write_text(
        "apiVersion: hetsched.io/v1alpha1\nkind: SchedulingPolicy\nmetadata: {name: preempting}\n"
        "spec: {plugins: [{name: resource-fit}, {name: preemption}]}\n"
    )
    cluster = cluster_file(tmp_path, a_node("n").cpu(2), a_pod("low").cpu(2).running_on("n"))
    pods = workload_file(tmp_path, a_pod("urgent").cpu(2).priority(5))
    asked = ("whatif", "-f", pods, "--cluster", cluster, "--policy", str(policy))
    text = run(*asked).stdout
    assert text.startswith("placed  ")
    assert "the placement requires the eviction of default/low (priority 0) from n" in text
    assert "evicted: default/low (priority 0) from n\n" in text
    refused = run(*asked, "--no-preempt")
    assert refused.exit_code == 10
    text = refused.stdout
    assert text.startswith("not-now  ")
    assert "evict" not in text
