"""Affinity: the share of the machine's features that a program uses, 0-1, four digits."""

import pytest

from hetsched.isa import match, parse


@pytest.mark.parametrize(
    ("required", "offered", "affinity"),
    [
        # 3 of 4 letters.
        ("RV64IMF", "RV64IMFD", 0.75),
        ("RV64IMFD", "RV64IMFD", 1.0),
        # i m f of i m f d v.
        ("RV64IMF", "RV64IMFDV", 0.6),
        # g counts as i m a f d; zicsr and zifencei do not count: 5 of 6.
        ("rv64g", "rv64gc", 0.8333),
        # i of i zba zbb: 1 of 3.
        ("rv64i", "rv64i_zba_zbb", 0.3333),
        # A profile counts its mandatory names: 12 of rva20u64 less zicsr, plus i = 12; 21 of rva22u64 likewise = 21.
        ("rva20u64", "rva22u64", 0.5714),
        # Closures: 9 flags of 9 + 7 + 9 = 25.
        ("x86-64-v1", "x86-64-v3", 0.36),
        # 25 of 26.
        ("x86-64-v3", "x86-64-v3+avx512f", 0.9615),
        # fp and asimd of fp, asimd and sve2.
        ("arm64", "arm64+sve2", 0.6667),
        # The same set in a longer spelling: 5 of 3 items would exceed 1.
        ("rv64i_zba_zbb_zbs", "rv64ib", 1.0),
    ],
)
def test_affinity_is_requested_over_offered(required: str, offered: str, affinity: float) -> None:
    assert match(parse(required), parse(offered)).affinity == affinity


def test_additions_of_the_node_do_not_count() -> None:
    assert match(parse("RV64IMF"), parse("RV64IMFD", source="node-label")).affinity == 0.75


def test_unsatisfied_match_has_no_affinity() -> None:
    assert match(parse("rv64gcv"), parse("rv64gc")).affinity is None
