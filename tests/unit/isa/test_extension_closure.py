"""Implied extensions and bundles, chain by chain."""

import pytest

from hetsched.isa import parse
from hetsched.isa.riscv_closure import closure, implied
from hetsched.isa.riscv_table import EXTENSIONS, PROFILES, SOFT


def close(*names: str, xlen: int = 64) -> frozenset[str]:
    return closure(frozenset(names), xlen)


@pytest.mark.parametrize(
    ("name", "gives"),
    [
        ("q", "d f zicsr"),
        ("a", "zaamo zalrsc"),
        ("m", "zmmul"),
        ("b", "zba zbb zbs"),
        ("c", "zca"),
        ("v", "zve64d zvl128b zve64f zve64x zve32f zve32x zvl64b zvl32b d f zicsr"),
        ("zvl256b", "zvl128b zvl64b zvl32b"),
        ("zfh", "zfhmin f zicsr"),
        ("zvfh", "zvfhmin zfhmin zve32f"),
        ("zk", "zkn zkr zkt zbkb zbkc zbkx zknd zkne zknh"),
        ("zks", "zbkb zbkc zbkx zksed zksh"),
        ("zvbb", "zvkb"),
        ("zvkng", "zvkn zvkg"),
        ("sha", "h"),
        ("za64rs", "za128rs"),
        ("zacas", "zaamo"),
        ("zabha", "zaamo"),
    ],
)
def test_extension_implies_its_closure(name: str, gives: str) -> None:
    assert set(gives.split()) <= close(name)


def test_compressed_floats_depend_on_the_float_and_the_width() -> None:
    assert "zcd" in close("c", "d")
    assert "zcf" in close("c", "f", xlen=32)
    assert close("c", "f").isdisjoint({"zcf", "zcd"})


def test_complete_parts_imply_their_bundle() -> None:
    assert "b" in close("zba", "zbb", "zbs")
    assert "b" not in close("zba", "zbb")
    assert "a" in close("zaamo", "zalrsc")
    assert {"zkn", "zk"} <= close("zbkb", "zbkc", "zbkx", "zknd", "zkne", "zknh", "zkr", "zkt")


def test_bundle_is_implied_only_by_all_applicable_parts() -> None:
    # With d, zcd is a part of c; then zca alone is not all of it.
    assert "c" in close("zca")
    assert "c" not in close("zca", "d")
    assert "c" in close("zca", "zcd", "d")


def test_v_is_no_bundle() -> None:
    assert "v" not in close("zve64d", "zvl128b")


def test_every_name_of_every_table_is_known() -> None:
    for row in EXTENSIONS.values():
        assert set(row["implies"]) <= EXTENSIONS.keys()
    for profile in PROFILES.values():
        assert {*profile["mandatory"], *profile["optional"]} <= EXTENSIONS.keys()


@pytest.mark.parametrize("name", sorted(name for name, row in EXTENSIONS.items() if row["ratified"] and name != "g"))
def test_ratified_extensions_are_accepted_as_requirements(name: str) -> None:
    width = EXTENSIONS[name].get("xlen", 64)
    needed = "_zve32x" if "needs_any" in EXTENSIONS[name] else ""
    text = f"rv{width}{name}" if name in "ie" else f"rv{width}i{needed}_{name}"
    isa = parse(text)
    assert implied([name], width) - {"i", "e"} <= isa.extensions


def test_larger_profiles_contain_the_smaller_ones() -> None:
    def mandatory(name: str) -> frozenset[str]:
        return parse(name).extensions

    assert mandatory("rva20u64") < mandatory("rva22u64") < mandatory("rva23u64")
    assert mandatory("rvb23u64") - mandatory("rva23u64") == set()
    assert "zfhmin" in mandatory("rva22u64") - mandatory("rvb23u64")


def test_properties_of_memory_and_hints_are_soft() -> None:
    assert {"zic64b", "zkt", "za64rs", "zicbop", "zihintpause"} <= SOFT
    assert SOFT.isdisjoint({"zicbom", "zicboz", "v"})
