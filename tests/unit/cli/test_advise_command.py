"""`hetsched advise` on files: the plan, its cost, and the exit code."""

from pathlib import Path

from tests.builders import a_node, a_pod
from tests.unit.cli.calling import cluster_file, document, run, workload_file


def a_tight_cluster(folder: Path) -> Path:
    # a has 5 - 4 = 1 CPU left, b 4 - 1 = 3: for 4 CPUs the pod of b has to move to a.
    left = a_pod("left").cpu(4).running_on("a").having(controller="ReplicaSet/left")
    right = a_pod("right").cpu(1).running_on("b")
    return cluster_file(folder, a_node("a").cpu(5), a_node("b").cpu(4), left, right)


def test_plan_text_output(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod("new").cpu(4))
    result = run("advise", "--cluster", a_tight_cluster(tmp_path), "-f", pods)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("plan  after 1 move, there is enough capacity for default/new on b")
    assert "default/right" in result.stdout
    assert "is not recreated by a controller" in result.stdout
    assert "minimum number of moves: 1" in result.stdout
    assert "no pod was moved" in result.stdout


def test_plan_json_output(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod("new").cpu(4))
    found = document(run("advise", "--cluster", a_tight_cluster(tmp_path), "-f", pods, "-o", "json"))
    (move,) = found["moves"]
    (pod,) = move["pods"]
    assert (found["goal"], found["verdict"], found["search"]["fewest"]) == ("room", "plan", True)
    assert (pod["pod"], pod["from"], pod["to"], pod["comesBack"]) == ("default/right", "b", "a", False)


def test_missing_plan_exits_10_with_the_reason(tmp_path: Path) -> None:
    pods = workload_file(tmp_path, a_pod("new").cpu(5))
    result = run("advise", "--cluster", a_tight_cluster(tmp_path), "-f", pods)
    assert result.exit_code == 10
    assert "nearest: the pod would fit if one more pod could be moved off a (default/left)" in result.stdout


def test_balanced_cluster_needs_no_moves(tmp_path: Path) -> None:
    result = run("advise", "--cluster", a_tight_cluster(tmp_path), "--target", "0.8")
    assert (result.exit_code, result.stdout.split()[0]) == (0, "nothing-to-do")


def test_files_cannot_be_changed(tmp_path: Path) -> None:
    result = run("advise", "--cluster", a_tight_cluster(tmp_path), "--confirm", "abc")
    assert result.exit_code == 2
    assert "NothingToConfirm" in result.output
