"""The covered part of a requirement: it runs on the machine, adds nothing, and drops no more than necessary."""

from __future__ import annotations

from itertools import product

import pytest

from hetsched.isa import match, parse
from hetsched.isa.covered_part import covered_part
from hetsched.isa.riscv_closure import closure

STRINGS = [
    "rv64i", "rv64gc", "rv64gcv", "rv64imac_zba", "rv64gc_zba_zbb_zbs", "rv64gc_zvbb_zve64d", "rva20u64", "rva22u64",
    "rva22u64_v", "rva23u64", "rv32imc", "x86-64-v1", "x86-64-v3", "x86-64-v3+avx512f", "x86-64-v4", "x86-64-v4+sha_ni",
    "arm64", "armv8.2-a", "armv8.2-a+sve2", "armv9.0-a",
]  # fmt: skip
PAIRS = list(product(STRINGS, STRINGS))


@pytest.mark.parametrize(
    ("required", "offered", "part"),
    [
        ("rv64gcv", "rv64gc", "rv64gc"),
        ("RV64IMFDV", "RV64IMFD", "rv64imfd"),
        ("RV64IMFV", "RV64IMF_zve32f", "rv64imf_zve32f"),  # parts of v that the machine has
        ("rva22u64_v", "rva22u64", "rva22u64"),
        ("rva23u64", "rva22u64", "rva22u64"),
        ("rv64gc_zba_zbb_zbs", "rv64gc_zba", "rv64gc_zba"),
        ("x86-64-v4", "x86-64-v3", "x86-64-v3"),
        ("x86-64-v4+sha_ni", "x86-64-v3+avx512f", "x86-64-v3+avx512f"),
        ("armv8.2-a+sve2", "armv8.2-a", "armv8.2-a"),
        ("rv64gc", "x86-64-v3", None),
        ("rv32imc", "rv64gc", None),
    ],
)
def test_lowered_requirement_is_written_shortly(required: str, offered: str, part: str | None) -> None:
    assert covered_part(parse(required), parse(offered, source="node-label")) == part


@pytest.mark.parametrize(("required", "offered"), PAIRS)
def test_lowered_requirement_is_covered_by_machine_and_requirement(required: str, offered: str) -> None:
    asked, has = parse(required), parse(offered, source="node-label")
    part = covered_part(asked, has)
    assert (part is None) == ((asked.arch, asked.xlen) != (has.arch, has.xlen))
    if part is not None:
        assert match(parse(part), has).satisfied
        assert match(parse(part), asked).satisfied


@pytest.mark.parametrize(("required", "offered"), PAIRS)
def test_available_names_are_kept(required: str, offered: str) -> None:
    asked, has = parse(required), parse(offered, source="node-label")
    part = covered_part(asked, has)
    if part is None:
        return
    kept = parse(part).extensions
    if asked.arch != "riscv":
        assert kept == asked.extensions & has.extensions
        return
    for name in asked.explicit - {asked.base}:
        if closure(frozenset((name,)), asked.xlen) <= has.extensions:
            assert name in kept
