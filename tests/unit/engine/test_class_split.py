"""The class-split plugin: keeps CPU pods off GPU nodes, as a filter or as a score."""

from __future__ import annotations

from hetsched.contracts.objects.node_report import GpuCard
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import ask, scheduler, score

CPU, GPU = a_node("cpu"), a_node("gpu").gpus(1)


def test_strictly_a_cpu_pod_never_runs_on_a_gpu_node() -> None:
    answer = ask("class-split", a_pod(), [CPU, GPU])
    assert answer.feasible == ["cpu"]
    assert answer.codes("gpu") == ["ClassSplit"]
    busy = a_pod("busy").gpu(1).running_on("gpu")
    assert ask("class-split", a_pod(), [CPU, GPU], [busy]).feasible == ["cpu"]


def test_node_with_unavailable_gpus_is_still_a_gpu_node() -> None:
    for card in (GpuCard(0, healthy=False, maintenance=True), GpuCard(0, healthy=False)):
        node = a_node("gpu").having(gpus=(card,))
        answer = ask("class-split", a_pod(), [CPU, node])
        assert (answer.feasible, answer.codes("gpu")) == (["cpu"], ["ClassSplit"])
        assert score("class-split", a_pod(), [CPU, node], params={"strict": False}) == {"cpu": 100, "gpu": 0}


def test_gpu_pods_are_not_scored() -> None:
    assert ask("class-split", a_pod().gpu(1), [CPU, GPU]).skipped
    assert score("class-split", a_pod().gpu(1), [CPU, GPU], params={"strict": False}) is None


def test_soft_mode_prefers_cpu_nodes() -> None:
    assert ask("class-split", a_pod(), [CPU, GPU], params={"strict": False}).skipped
    assert score("class-split", a_pod(), [CPU, GPU], params={"strict": False}) == {"cpu": 100, "gpu": 0}
    assert score("class-split", a_pod(), [CPU, GPU]) is None


def test_strict_split_keeps_cpu_pods_off_idle_gpu_nodes() -> None:
    deciding = scheduler([CPU.pods(0), GPU], policy="split-clusters")
    assert deciding.schedule(a_pod().build()).node is None
    assert deciding.schedule(a_pod("cards").gpu(1).build()).node == "gpu"
