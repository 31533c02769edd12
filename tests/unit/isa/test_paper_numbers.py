"""ISAMatch as published: its 12 combinations, its Algorithm 1, its affinities."""

import pytest

from hetsched.contracts.errors import InputError
from hetsched.isa.paper import letters_subset, modules, paper_affinity, paper_match, runnable_isas


def test_rv64imfdv_serves_twelve_requests() -> None:
    # Subsets of M F D V with I fixed are 16; D needs F leaves 3 * 2 * 2 = 12.
    isas = runnable_isas("RV64IMFDV")
    assert len(isas) == len(set(isas)) == 12
    assert {"RV64I", "RV64IMFDV", "RV64IMV", "RV64IFD"} <= set(isas)
    assert "RV64ID" not in isas


def test_listed_requests_match_the_machine() -> None:
    assert all(paper_match(label, "RV64IMFDV") for label in runnable_isas("RV64IMFDV"))


@pytest.mark.parametrize(
    ("pod", "node", "matches"),
    [
        ("RV64IMFD", "RV64IMFDV", True),
        ("RV64IMFD", "RV64IM", False),
        ("rv64imf", "RV64IMFD", True),
        ("RV64ID", "RV64IFD", True),
        ("RV64G", "RV64IMAFDC", True),
        ("RV64IM", "X86", False),
        # Hardening: the published algorithm never compares the width.
        ("RV32IM", "RV64IM", False),
        # No RV in the label: substring.
        ("ARM", "ARM64", True),
        ("ARM64", "ARM64", True),
        ("X86", "ARM64", False),
        # A node without modules is no candidate.
        ("RV64I", "RV64", False),
        ("RV64I_ZBA", "RV64I_ZBB_ZBA", True),
        ("RV64IZBA", "RV64IM_ZBA", True),
    ],
)
def test_algorithm_1(pod: str, node: str, matches: bool) -> None:
    assert paper_match(pod, node) is matches


@pytest.mark.parametrize(
    ("pod", "node", "affinity"),
    [
        ("RV64IMF", "RV64IMFD", 3 / 4),
        ("RV64IMF", "RV64IMFDV", 3 / 5),
        ("RV64IMFD", "RV64IMFD", 1.0),
        ("RV64IMFD", "RV64IMFDV", 0.8),
        ("RV64I", "RV64IMFD", 1 / 4),
        ("RV64I", "RV64IM", 1 / 2),
        ("RV64I", "RV64IMFDV", 1 / 5),
        ("ARM64", "ARM64", 1.0),
        ("RV64IMFD", "RV64IM", None),
    ],
)
def test_affinity_counts_letters_i_included(pod: str, node: str, affinity: float | None) -> None:
    assert paper_affinity(pod, node) == affinity


def test_fourteen_nodes_nine_riscv_seven_candidates() -> None:
    nodes = ["X86"] * 3 + ["ARM64"] * 2 + ["RV64I", "RV64IM"] + ["RV64IMFD"] * 3 + ["RV64IMFC"] * 2 + ["RV64IMFDV"] * 2
    candidates = [node for node in nodes if paper_match("RV64IMF", node)]
    assert (len(nodes), sum(node.startswith("RV") for node in nodes), len(candidates)) == (14, 9, 7)
    assert {paper_affinity("RV64IMF", node) for node in candidates} == {3 / 4, 3 / 5}


def test_pod_label_without_modules_is_rejected() -> None:
    with pytest.raises(InputError) as refusal:
        paper_match("RV64", "RV64I")
    assert refusal.value.code == "IsaMissingBase"


def test_modules_are_sets_without_versions() -> None:
    assert modules("RV64I2P1M2_ZVL128B_ZBA1P0") == {"I", "M", "ZVL128B", "ZBA"}
    assert modules("RV64GC") == set("IMAFDC")
    assert letters_subset("RV64IM", "RV64IMAC")
