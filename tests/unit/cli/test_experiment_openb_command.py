"""`hetsched experiment openb`: lists and nodes from files, and its own options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.calling import document, run

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n-{i},32000,131072,2,T4\n" for i in range(4))
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "".join(f"p-{i},4000,4096,1,500\n" for i in range(20))
PUBLISHED = "trace,policy,seeds,alloc_pct_at_80,at_130\nsmall,06-FGD,10,80,99.5\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(NODES)
    (tmp_path / "openb_pod_list_small.csv").write_text(PODS)
    (tmp_path / "fgd_published_results.csv").write_text(PUBLISHED)
    return tmp_path


def asked(folder: Path, *more: str) -> list[str | Path]:
    return ["experiment", "openb", "--list", folder / "openb_pod_list_small.csv", "--seeds", "1", *more]


def test_nodes_and_published_results_are_found_next_to_the_list(folder: Path) -> None:
    (made,) = document(run(*asked(folder, "--policy", "fgd", "-o", "json")))["experiments"]
    assert (made["name"], made["reconstruction"]) == ("openb", False)
    rows = {(row["case"], row["metric"]): row for row in made["rows"]}
    # 20 pods of half a GPU on 8 GPUs: 125 % come with the list, 130 % and more by a draw; all 8 GPUs fill up.
    full = rows["small, ties by shuffled names", "GPUs allocated at 130 % (%)"]
    assert (full["policy"], full["value"], full["published"]) == ("fgd", 100.0, 99.5)
    assert {row["metric"] for row in made["rows"]} >= {"GPUs allocated at 50 % (%)", "GPUs fragmented at 80 % (%)"}
    assert {case for case, _ in rows} == {
        f"small, {text}" for text in ("ties by shuffled names", "ties by name", "random ties")
    }


def test_arrival_and_ties_options_select_the_rows(folder: Path) -> None:
    more = ("--arrival", "0.4", "--arrival", "0.7", "--ties", "name", "--policy", "first-fit", "-o", "json")
    (made,) = document(run(*asked(folder, *more)))["experiments"]
    assert [row["metric"] for row in made["rows"]] == [
        "GPUs allocated at 40 % (%)", "GPUs fragmented at 40 % (%)", "GPUs allocated at 70 % (%)",
        "GPUs fragmented at 70 % (%)", "unallocated GPUs at 70 %",
    ]  # fmt: skip


def test_failed_expectation_exits_1(folder: Path) -> None:
    (folder / "fgd_published_results.csv").write_text(PUBLISHED.replace("99.5", "90"))
    result = run(*asked(folder, "--policy", "fgd", "--ties", "shuffled"))
    assert result.exit_code == 1
    assert "FAILED" in result.stdout


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["openb"], "ListsMissing"),
        (["binpack", "--arrival", "1.3"], "OptionNotTaken"),
        (["binpack", "--seeds", "2"], "OptionNotTaken"),
        (["openb", "--list", "LIST", "--ties", "never"], "TiesUnknown"),
        (["openb", "--list", "LIST", "--arrival", "0"], "ArrivalRatioInvalid"),
        (["openb", "--list", "LIST", "--policy", "absent"], "PolicyUnknown"),
        (["openb", "--list", "LIST", "--cluster", "nowhere.csv"], "FileUnreadable"),
    ],
)
def test_impossible_run_is_rejected_before_any_starts(folder: Path, options: list[str], code: str) -> None:
    words = [str(folder / "openb_pod_list_small.csv") if word == "LIST" else word for word in options]
    result = run("experiment", *words)
    assert result.exit_code == 2
    assert code in result.stderr
