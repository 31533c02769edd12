"""Reports of seeded clusters: every seeded fault is found, and nothing else is reported."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings

from hetsched.adapters.look.dumped_cluster import parse_dump
from hetsched.cli.options import compile_choice
from hetsched.contracts.api.cluster_report import ClusterObservation, ClusterReport
from hetsched.contracts.api.findings import Level
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.look.report import report_of
from tests.seeded_clusters import KINDS, Plain, cards, node, pod, seeded_cluster, zones
from tests.unit.engine.draws import NAMESPACES, mixed_fleets, mixed_pods


def report(objects: list[Plain]) -> ClusterReport:
    data = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).encode()
    policy = compile_choice(BUILTIN["hetsched"], preemption=False)
    now = datetime(2026, 11, 27, tzinfo=UTC).isoformat()
    return report_of(
        parse_dump([("cluster.json", data)]), policy, compile_choice(BUILTIN["default-kube"]), evaluated_at=now
    )


def found(of: ClusterReport) -> set[tuple[str, str, str]]:
    return {(finding.code, finding.kind, finding.name) for finding in of.findings}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", KINDS)
def test_seeded_faults_are_reported_without_false_positives(kind: str, seed: int) -> None:
    cluster = seeded_cluster(kind, seed, faults=True)
    assert found(report(cluster.objects)) == cluster.expected


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", KINDS)
def test_healthy_cluster_has_no_findings(kind: str, seed: int) -> None:
    made = report(seeded_cluster(kind, seed, faults=False).objects)
    assert (found(made), made.unchecked) == (set(), ())


def test_findings_have_evidence_and_remedy_and_are_sorted_by_level() -> None:
    made = report([one for kind in ("pending_pods", "gpus") for one in seeded_cluster(kind, 1, faults=True).objects])
    levels = [list(Level).index(finding.level) for finding in made.findings]
    assert levels == sorted(levels)
    assert made.counts == {level.value: sum(one.level is level for one in made.findings) for level in Level}
    assert all(finding.evidence and finding.remedy and finding.message for finding in made.findings)


def test_pods_of_one_controller_share_a_finding_with_the_nearest_fit() -> None:
    (large,) = (one for one in report(_full_nodes(pending=12)).findings if one.code == "PodWaits")
    assert (large.kind, large.name, large.count) == ("ReplicaSet", "default/large", 12)
    assert len(large.affected) == 10
    assert any(text.startswith("Nearest fit: cpu 6 -> ") for text in large.evidence)
    assert large.remedy.startswith("Change the request: cpu 6 -> ")


def _full_nodes(pending: int) -> list[Plain]:
    nodes = [node(f"n{number}", cpu="8") for number in range(3)]
    running = [pod(f"run-{number}", on=f"n{number}", cpu="5") for number in range(3)]
    return [*nodes, *running, *(pod(f"large-{number}", cpu="6", owner="large") for number in range(pending))]


def test_pods_that_hetsched_schedules_are_not_misplaced_by_kube_scheduler() -> None:
    """hetsched applies the filters itself, so neither images nor kubelets are a fault of its pending pods."""
    objects = [node("x", isa="x86-64-v3"), node("r", arch="riscv64", isa="rv64gc"), node("n", cpu="16", gpus=4)]
    objects += [cards("n", 4, zones=2), zones("n", 8, policy="single-numa-node", manager="static")]
    image = {"hetsched.io/image-platforms": '{"app:1": ["linux/riscv64"]}'}
    codes = []
    for scheduler in ("default-scheduler", "hetsched"):
        pending = [
            pod("web", annotations=image, schedulerName=scheduler),
            pod("across", cpu="10", gpus=1, schedulerName=scheduler),
        ]
        codes.append({finding.code for finding in report([*objects, *pending]).findings})
    assert codes[0] - codes[1] == {"MayLandOnWrongNode", "KubeletWouldReject"}
    assert codes[1] <= codes[0]


def test_selector_taint_and_capacity_protect_a_pod_from_a_wrong_node() -> None:
    image = {"hetsched.io/image-platforms": '{"app:1": ["linux/amd64"]}'}
    wrong = node("r", arch="riscv64", isa="rv64gc", cpu="2")
    x = node("x", isa="x86-64-v3")
    free = pod("web", on="x", annotations=image)
    assert found(report([x, wrong, free])) == {("MayLandOnWrongNode", "Pod", "default/web")}
    tainted = {**wrong, "spec": {"taints": [{"key": "only", "value": "riscv", "effect": "NoSchedule"}]}}
    assert found(report([x, tainted, free])) == set()
    assert found(report([x, wrong, pod("web", on="x", cpu="4", annotations=image)])) == set()
    selected = pod("web", on="x", annotations=image, selector={"kubernetes.io/arch": "amd64"})
    assert found(report([x, wrong, selected])) == set()


def test_member_of_a_gang_is_rejected_because_of_an_earlier_member() -> None:
    """Each member alone fits a zone; the node has 5 CPUs for the third member, but in two zones."""
    objects = [node("n", cpu="16", gpus=4), cards("n", 4, zones=2)]
    objects += [zones("n", 8, policy="single-numa-node", manager="static"), pod("other", on="n", cpu="1", gpus=1)]
    gang = {"pod-group.scheduling.sigs.k8s.io/name": "ring", "pod-group.scheduling.sigs.k8s.io/min-available": "2"}
    members = [pod(f"ring-{place}", cpu="5", gpus=1, labels=gang) for place in (0, 1, 2)]
    assert "KubeletWouldReject" not in {one.code for one in report([*objects, *members[:1]]).findings}
    codes = {(one.code, one.name) for one in report([*objects, *members]).findings}
    assert ("KubeletWouldReject", "default/ring") in codes


def test_regret_compares_each_pod_without_itself() -> None:
    """A pod without GPUs on a GPU node has a regret, the others have none."""
    objects = [node("a"), node("b"), node("g", gpus=2), cards("g", 2), pod("train", on="g", gpus=1)]
    made = report([*objects, pod("plain", on="g"), pod("other", on="a")])
    assert (made.regret.pods, made.regret.compared) == (3, 3)
    assert [(one.pod, one.node) for one in made.regret.largest] == [("default/plain", "g")]
    assert made.regret.largest[0].regret > 0
    assert made.regret.mean == pytest.approx(made.regret.largest[0].regret / 3)


def test_unknown_images_on_several_architectures_are_not_checked() -> None:
    objects = [node("x", isa="x86-64-v3"), node("r", arch="riscv64", isa="rv64gc"), pod("web", on="x")]
    assert [part.part for part in report(objects).unchecked] == ["image platforms"]


def test_same_cluster_gives_the_same_report() -> None:
    objects = seeded_cluster("kubelets", 3, faults=True).objects
    assert report(objects).document() == report(objects).document()


def test_evidence_and_names_are_bounded() -> None:
    isa = {"hetsched.io/isa": "rv64gcv"}
    pods = [pod(f"v{number:02}", on="r", owner="vector", cpu="100m", annotations=isa) for number in range(15)]
    made = report([node("r", arch="riscv64", isa="rv64gc"), *pods])
    (vector,) = (one for one in made.findings if one.code == "IsaMissingExtension")
    assert (vector.count, len(vector.affected), len(vector.evidence)) == (15, 10, 3)


@settings(max_examples=20)
@given(mixed_fleets(), mixed_pods())
def test_own_placements_are_correct_and_pending_pods_have_reasons(nodes: list[NodeReport], pods: list[PodSpec]) -> None:
    policy = compile_choice(BUILTIN["hetsched"], preemption=False)
    state = ClusterState(nodes, (), NAMESPACES)
    scheduler = Scheduler(state, policy)
    for one in pods:
        scheduler.schedule(one)
    scheduler.settle()
    running = [
        msgspec.structs.replace(placed.pod, node_name=state.columns.names[placed.row], allocation=placed.allocation)
        for placed in state.placed_pods.values()
    ]
    pending = [one for one in pods if one.key not in state.placed_pods]
    content = ClusterContent(tuple(nodes), tuple(running), tuple(pending), namespaces=NAMESPACES)
    kube = compile_choice(BUILTIN["default-kube"])
    made = report_of(ClusterObservation(content), policy, kube, evaluated_at="2026-11-28T00:00:00Z")
    assert not [one for one in made.findings if one.code.startswith(("Isa", "Image"))]
    explained = [name for one in made.findings if one.code.startswith("Pod") for name in one.affected]
    assert sorted(explained) == sorted(one.key for one in pending)
