"""`hetsched whatif` on a cluster with drained, copied, or added nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import a_node, a_pod
from tests.unit.cli.calling import cluster_file, document, run, workload_file


def asked(folder: Path, *options: str) -> tuple[str, ...]:
    cluster = cluster_file(folder, a_node("n1").cpu(2), a_node("n2").cpu(1))
    return ("whatif", "-f", workload_file(folder, a_pod("p").cpu("2")), "--cluster", cluster, *options, "-o", "json")


def test_drained_node_gets_no_pods_and_a_copy_gets_them(tmp_path: Path) -> None:
    assert document(run(*asked(tmp_path)))["placements"][0]["node"] == "n1"
    drained = run(*asked(tmp_path, "--drain", "n1"))
    assert drained.exit_code == 10
    copied = document(run(*asked(tmp_path, "--drain", "n1", "--copy-node", "n1=1")))
    assert copied["placements"][0]["node"] == "n1-copy-1"


def test_nodes_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    more = cluster_file(tmp_path / "more", a_node("n3").cpu(4))
    found = document(run(*asked(tmp_path, "--drain", "n1", "--add-nodes", more)))
    assert found["placements"][0]["node"] == "n3"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--drain", "n9"), "NodeUnknown"), (("--drain", "n1", "--drain", "n1"), "NodeRepeated"),
        (("--copy-node", "n1"), "NodeCopiesInvalid"), (("--copy-node", "n1=0"), "NodeCopiesInvalid"),
        (("--copy-node", "n9=1"), "NodeUnknown"),
    ],
)  # fmt: skip
def test_missing_node_is_rejected(tmp_path: Path, options: tuple[str, ...], code: str) -> None:
    refused = run(*asked(tmp_path, *options))
    assert refused.exit_code == 2
    assert code in refused.stderr


def test_displaced_pod_without_a_node_exits_10(tmp_path: Path) -> None:
    nodes = (a_node("n1").cpu(4), a_node("n2").cpu(2))
    cluster = cluster_file(tmp_path, *nodes, a_pod("solver").cpu("3").running_on("n1"))
    files = ("whatif", "-f", workload_file(tmp_path, a_pod("p").cpu("1")), "--cluster", cluster, "--drain", "n1")
    failed = run(*files)
    assert failed.exit_code == 10
    assert "placed" not in failed.stdout.split()[0]
    assert "displaced: default/solver from n1 to no node (not-now)" in failed.stdout
    assert document(run(*files, "-o", "json"))["verdict"] == "not-now"
