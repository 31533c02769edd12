"""`hetsched whatif -o json`: the fields of the public contract, with the same bytes each time except the time."""

import json
from pathlib import Path
from typing import Any

from tests.builders import a_node, a_pod
from tests.unit.cli.calling import cluster_file, document, run, workload_file

TOP = [
    "verdict", "summary", "policy", "evaluatedAt", "snapshot", "placements", "unplaced", "displaced", "evictions",
    "balance",
]  # fmt: skip


def answer(folder: Path, *options: str) -> dict[str, Any]:
    node = a_node("n3").isa("x86-64-v3").gpus(2, memory_mib=16000)
    pod = a_pod("job").cpu(2).gpu(1).isa("x86-64-v2")
    late = a_pod("late").gpu(3)
    pods = workload_file(folder, pod, late)
    return document(run("whatif", "-f", pods, "--cluster", cluster_file(folder, node), "-o", "json", *options))


def test_document_has_the_fields_of_the_contract_in_order(tmp_path: Path) -> None:
    found = answer(tmp_path)
    assert list(found) == TOP
    assert found["policy"] == {"name": "hetsched", "version": 1}
    (placement,) = found["placements"]
    assert placement["pod"] == "default/job"
    assert placement["node"] == "n3"
    assert {key: placement["isa"][key] for key in ("mode", "required", "offered")} == {
        "mode": "native",
        "required": "x86-64-v2",
        "offered": "x86-64-v3",
    }
    assert placement["zones"] == []
    # A whole card is charged with all of its memory.
    assert [(card["index"], card["milli"], card["memoryMiB"]) for card in placement["gpus"]] == [(0, 1000, 16000)]
    (unplaced,) = found["unplaced"]
    assert unplaced["verdict"] == "never-fits"
    # One of the two cards is taken: one is what is left.
    assert unplaced["nearestFit"] == [
        {"change": "gpu-number 3 -> 1", "field": "oks/gpu-number", "from": "3", "to": "1", "nodes": ["n3"], "count": 1}
    ]
    assert set(unplaced["reasons"][0]) >= {"code", "plugin", "nodes", "message"}
    assert found["displaced"] == []
    assert found["evictions"] == []
    assert set(found["balance"]) == {"before", "after"}


def test_explain_adds_every_node_with_every_score(tmp_path: Path) -> None:
    rows = answer(tmp_path, "--explain")["nodes"]
    assert [(row["pod"], row["name"], row["rank"]) for row in rows] == [
        ("default/job", "n3", 1),
        ("default/late", "n3", None),
    ]
    placed, refused = rows
    assert placed["refused"] is None
    assert placed["total"] == sum(score["weighted"] for score in placed["scores"])
    assert set(placed["scores"][0]) == {"plugin", "raw", "normalized", "weight", "weighted"}
    assert refused["feasible"] is False
    assert refused["refused"]["plugin"] == "gpu-fit"


def test_score_is_the_total_over_the_sum_of_score_weights(tmp_path: Path) -> None:
    found = answer(tmp_path, "--explain")
    row = found["nodes"][0]
    weights = sum(score["weight"] for score in row["scores"])
    assert abs(found["placements"][0]["score"] - row["total"] / weights) < 1e-5


def test_two_runs_differ_in_the_time_only(tmp_path: Path) -> None:
    first, second = answer(tmp_path, "--explain"), answer(tmp_path, "--explain")
    assert first.pop("evaluatedAt").endswith("Z")
    second.pop("evaluatedAt")
    assert json.dumps(first) == json.dumps(second)


def test_pods_see_the_earlier_ones(tmp_path: Path) -> None:
    # One node with 8 CPUs: the pod of higher priority is tried first and leaves 8 - 5 = 3 for the other.
    cluster = cluster_file(tmp_path, a_node("only"))
    pods = workload_file(tmp_path, a_pod("low").cpu(5), a_pod("high").cpu(5).priority(10))
    found = document(run("whatif", "-f", pods, "--cluster", cluster, "-o", "json"))
    assert [item["pod"] for item in found["placements"]] == ["default/high"]
    assert [item["pod"] for item in found["unplaced"]] == ["default/low"]


def test_inputs_are_unchanged(tmp_path: Path) -> None:
    answer(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    answer(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
