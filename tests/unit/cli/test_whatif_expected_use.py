"""Expected use of pods and its source, in text and in JSON."""

from __future__ import annotations

from pathlib import Path

from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.contracts.objects.cluster import ClusterContent, PodUsage
from hetsched.contracts.units import CPU
from tests.builders import a_node, a_pod
from tests.unit.cli.calling import document, run, workload_file

SAMPLES = tuple(PodUsage("default", f"web-{i}", "Deployment/web", {CPU: 2500}) for i in range(6))


def measured_cluster(folder: Path) -> Path:
    nodes = (a_node("n1").using("2026-11-20T10:00:00Z", cpu="1"), a_node("n2").using("2026-11-20T11:00:00Z", cpu="1"))
    path = folder / "cluster.json"
    path.write_bytes(write_cluster(ClusterContent(nodes=tuple(n.build() for n in nodes), pod_usages=SAMPLES)))
    return path


def three_pods(folder: Path) -> Path:
    web = [a_pod(name).having(controller="Deployment/web") for name in ("web-a", "web-b")]
    return workload_file(folder, *web, a_pod("solo").expecting(cpu="2"), a_pod("plain"))


def test_alike_pods_share_a_line_that_names_the_basis(tmp_path: Path) -> None:
    text = run("whatif", "-f", three_pods(tmp_path), "--cluster", measured_cluster(tmp_path)).stdout
    assert "expected use of default/web-a and 1 more: cpu 2500m (learnt p95 of 6 pods of Deployment/web)" in text
    assert "expected use of default/solo: cpu 2 (declared)" in text
    assert "default/plain:" not in text


def test_stale_samples_are_named(tmp_path: Path) -> None:
    text = run("whatif", "-f", three_pods(tmp_path), "--cluster", measured_cluster(tmp_path)).stdout
    assert "measured use of n1 is stale: requests are used instead" in text


def test_document_has_both_and_omits_requested_only_use(tmp_path: Path) -> None:
    answer = document(run("whatif", "-f", three_pods(tmp_path), "--cluster", measured_cluster(tmp_path), "-o", "json"))
    found = {placement["pod"]: placement.get("expectedUse") for placement in answer["placements"]}
    learnt = {"basis": "learnt p95 of 6 pods of Deployment/web", "amounts": {"cpu": "2500m"}}
    assert found["default/web-a"] == found["default/web-b"] == learnt
    assert found["default/solo"] == {"basis": "declared", "amounts": {"cpu": "2"}}
    assert found["default/plain"] is None
    assert answer["balance"]["staleSamples"] == ["n1"]


def test_simulate_learns_too(tmp_path: Path) -> None:
    # 8 CPUs, 1 measured: 2.5 learnt each, so two pods fit in addition to the measured use and the third does not.
    path = tmp_path / "one.json"
    node = a_node("n1").using(cpu="1").build()
    path.write_bytes(write_cluster(ClusterContent(nodes=(node,), pod_usages=SAMPLES)))
    pods = workload_file(tmp_path, *(a_pod(f"web-{n}").having(controller="Deployment/web") for n in "abc"))
    answer = document(run("simulate", "--cluster", path, "--workload", pods, "--policy", "mbcgt", "-o", "json"))
    assert (answer["results"][0]["placed"], answer["results"][0]["pending"]) == (2, 1)
