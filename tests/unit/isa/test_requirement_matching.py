"""Matching rules: width, base, subset, versions, profiles."""

from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hetsched.isa import Match, match, parse
from hetsched.isa.riscv_closure import closure
from hetsched.isa.value import Source

K1 = (
    "rv64imafdcv_zicbom_zicboz_zicntr_zicond_zicsr_zifencei_zihintpause_zihpm_zfh_zfhmin_zca_zcd_zba_zbb_zbc_zbs_zkt_"
    "zve32f_zve32x_zve64d_zve64f_zve64x_zvfh_zvfhmin_zvkt_sscofpmf_sstc_svinval_svnapot_svpbmt"
)
VISIONFIVE_2 = "rv64imafdc_zicntr_zicsr_zifencei_zihpm_zba_zbb"


def compare(required: str, offered: str, source: Source = "cpuinfo") -> Match:
    return match(parse(required), parse(offered, source=source))


@pytest.mark.parametrize(
    ("required", "offered"),
    [
        ("rv64gc", VISIONFIVE_2),
        ("rv64gc_zba_zbb", VISIONFIVE_2),
        ("rv64gcv", K1),
        ("rva22u64", K1),
        ("rva22u64_v", K1),
        ("rv64gc_b", K1),
        ("rv64e", "rv64i"),
        ("rv64gc", "rva22u64"),
        ("rva22u64", "rva23u64"),
        ("amd64", "x86-64-v3"),
        ("x86-64-v3+avx512f", "x86-64-v4"),
        ("arm64+sve2", "armv9.0-a"),
        ("armv8.4-a", "armv9.0-a"),
    ],
)
def test_covering_offer_satisfies_the_requirement(required: str, offered: str) -> None:
    assert compare(required, offered).satisfied


@pytest.mark.parametrize(
    ("required", "offered", "missing"),
    [
        ("rv64gcv", VISIONFIVE_2, ("v",)),
        ("rv64gc", "x86-64-v4", ("riscv",)),
        ("amd64", "arm64", ("x86",)),
        ("arm64", "rv64gc", ("arm",)),
        ("rv32i", "rv64gc", ("rv32",)),
        ("rv64i", "rv32i", ("rv64",)),
        ("rv64i", "rv64e", ("i",)),
        ("x86-64-v3+avx512f", "x86-64-v3", ("avx512f",)),
        ("armv8.2-a", "armv8.1-a", ("dcpop",)),
        ("armv8.6-a", "armv9.0-a", ("bf16", "ecv", "i8mm")),
        ("rv64gc_xtheadba", VISIONFIVE_2, ("xtheadba",)),
    ],
)
def test_missing_items_are_named(required: str, offered: str, missing: tuple[str, ...]) -> None:
    assert compare(required, offered) == Match(satisfied=False, missing=missing)


@pytest.mark.parametrize(
    ("required", "offered", "missing"),
    [
        # A name replaces all names that it implies.
        ("RV64IMV", "rv64im", ("v",)),
        ("rv64gcv", "rv64gc_zve64x_zvl128b", ("v",)),
        ("rv64gc", "rv64i", ("a", "c", "d", "m")),
        # The bundle replaces its parts; a single missing requested part is named itself.
        ("rv64gc_zba_zbb_zbs", "rv64gc", ("b",)),
        ("rv64gc_zba_zbb_zbs", "rv64gc_zba_zbb", ("zbs",)),
        ("rv64gcb", "rv64gc_zba_zbb", ("b",)),
        ("rva22u64", VISIONFIVE_2, ("b", "zfhmin", "zicbom", "zicboz")),
    ],
)
def test_missing_is_the_smallest_set(required: str, offered: str, missing: tuple[str, ...]) -> None:
    assert compare(required, offered).missing == missing


NAMES = st.frozensets(
    st.sampled_from([
        "b", "zba", "zbb", "zbs", "zk", "zkn", "zks", "zkr", "zkt", "zbkb", "zbkc", "zknd", "zkne", "zknh", "zksed",
        "zksh", "zvkn", "zvknc", "zvkng", "zvks", "zvksc", "zvksg", "zvkb", "zvkg", "zvbc", "zvkned", "zvknhb",
        "zvksed", "zvksh", "zvkt",
    ]),
    max_size=7,
)  # fmt: skip


@given(NAMES, NAMES)
@example(frozenset({"zvknc", "zvksc", "zvks", "zvkn", "zvkng"}), frozenset({"zvknc", "zvkn", "zvksed"}))
@example(frozenset({"zvksed", "zvksh", "zvbc", "zvkng"}), frozenset({"zvknc", "zvkb", "zvknhb"}))
def test_missing_is_as_small_as_brute_force_finds(required: frozenset[str], offered: frozenset[str]) -> None:
    asked = parse("_".join(("rv64gv", *sorted(required))))
    has = parse("_".join(("rv64gv", *sorted(offered))))
    found = frozenset(match(asked, has).missing)
    lacking = asked.needed - has.extensions
    assert found <= lacking <= closure(has.extensions | found, 64)
    smaller = (chosen for size in range(min(len(found), 4)) for chosen in combinations(sorted(lacking), size))
    assert not any(lacking <= closure(has.extensions | set(chosen), 64) for chosen in smaller)


@pytest.mark.parametrize(
    ("required", "offered", "satisfied"),
    [
        ("rv64i_zba1p0", "rv64i_zba1p0", True),
        ("rv64i_zba1p0", "rv64i_zba1p3", True),
        ("rv64i_zba1p3", "rv64i_zba1p0", False),
        ("rv64i_zba2p0", "rv64i_zba1p0", False),
        ("rv64i_zba", "rv64i_zba2p0", False),
        ("rv64i_zba2p0", "rv64i_zba", False),
        # The table has A 2.1: if one side states no version, only the major number counts.
        ("rv64ia", "rv64ia2p0", True),
        ("rv64ia2p7", "rv64ia", True),
        ("rv64i2p0", "rv64i2p1", True),
        ("rv64i2p1", "rv64i2p0", False),
    ],
)
def test_versions_must_be_compatible(required: str, offered: str, satisfied: bool) -> None:
    assert compare(required, offered, source="node-label").satisfied is satisfied


def test_versions_of_unrequested_extensions_are_ignored() -> None:
    assert compare("rv64i", "rv64i_zba2p0", source="node-label").satisfied


def test_optional_extensions_of_a_profile_do_not_reject_and_are_reported() -> None:
    result = compare("rva22u64", K1)
    assert result.satisfied
    assert {"zicbop", "zic64b", "zicclsm", "za64rs"} <= set(result.unreported)


@pytest.mark.parametrize("name", ["zicbop", "zic64b", "za64rs"])
def test_explicit_name_is_required(name: str) -> None:
    assert compare(f"rv64gc_{name}", K1).missing == (name,)


def test_extensions_beyond_a_profile_are_required_by_name() -> None:
    # zvkn implies zvkt, optional in rva23u64 but required here by the addition.
    offered = "rva22u64_v_zvkb_zvkned_zvknhb"
    assert compare("rva22u64_v_zvkn", offered, source="node-label").missing == ("zvkn",)


def test_bundle_completed_by_an_optional_name_is_not_required() -> None:
    # rva22u64 has zkt as optional; with zkn and zkr the closure names zk, which a node without zkt cannot have.
    offered = "rv64gcb_zfhmin_zicbom_zicboz_zihintpause_zkn_zkr"
    assert compare("rva22u64_zkn_zkr", offered).satisfied
