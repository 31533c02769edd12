"""x86-64 and Arm: levels, features, their spellings, and the label form."""

from itertools import pairwise, permutations

import pytest

from hetsched.isa import label_value, parse
from hetsched.isa.arm import ARM
from hetsched.isa.levelled import Family
from hetsched.isa.tables import load
from hetsched.isa.x86 import X86


@pytest.mark.parametrize(
    ("text", "base", "canonical"),
    [
        ("X86", "x86-64-v1", "x86-64-v1"),
        ("amd64", "x86-64-v1", "x86-64-v1"),
        ("x86_64", "x86-64-v1", "x86-64-v1"),
        ("amd64/v3", "x86-64-v3", "x86-64-v3"),
        ("x86_64_v3", "x86-64-v3", "x86-64-v3"),
        ("X86-64-V3+AVX512F", "x86-64-v3", "x86-64-v3+avx512f"),
        ("x86-64-v3_avx512f", "x86-64-v3", "x86-64-v3+avx512f"),
        # A flag may contain underscores: the longest known name wins.
        ("x86-64-v3_gfni_avx512_vnni_aes", "x86-64-v3", "x86-64-v3+aes+avx512_vnni+gfni"),
        ("x86_64_v2_sse4_1_sha_ni", "x86-64-v2", "x86-64-v2+sha_ni"),
        # The base is the highest level with all its flags present.
        ("x86-64-v3+avx512f+avx512bw+avx512cd+avx512dq+avx512vl", "x86-64-v4", "x86-64-v4"),
        ("x86-64-v3+avx2", "x86-64-v3", "x86-64-v3"),
        ("ARM64", "armv8.0-a", "armv8.0-a"),
        ("aarch64", "armv8.0-a", "armv8.0-a"),
        ("armv8-a", "armv8.0-a", "armv8.0-a"),
        ("armv8.2-a", "armv8.2-a", "armv8.2-a"),
        ("arm64+sve2", "armv8.0-a", "armv8.0-a+sve2"),
        ("arm64_SVE2_bf16", "armv8.0-a", "armv8.0-a+bf16+sve2"),
        ("arm64+crc32+atomics+asimdrdm", "armv8.1-a", "armv8.1-a"),
        ("armv8.5-a+sve+sve2", "armv9.0-a", "armv9.0-a"),
        ("arm64/v9", "armv9.0-a", "armv9.0-a"),
    ],
)
def test_every_spelling_has_one_canonical_text(text: str, base: str, canonical: str) -> None:
    isa = parse(text)
    assert (isa.base, isa.canonical, isa.xlen) == (base, canonical, 64)
    assert parse(canonical).extensions == isa.extensions


@pytest.mark.parametrize(
    ("spelling", "flag"),
    [
        ("sse4.1", "sse4_1"),
        ("SSE42", "sse4_2"),
        ("sse3", "pni"),
        ("LZCNT", "abm"),
        ("FMA3", "fma"),
        ("CX16", "cx16"),
        ("LAHF", "lahf_lm"),
        ("AVX512VNNI", "avx512_vnni"),
        ("AMXTILE", "amx_tile"),
        ("sha", "sha_ni"),
    ],
)
def test_x86_flag_spellings_map_to_the_linux_name(spelling: str, flag: str) -> None:
    assert flag in parse(f"amd64+{spelling}").extensions


@pytest.mark.parametrize(
    ("spelling", "word"), [("ASIMDDP", "asimddp"), ("FEAT_SVE2", "sve2"), ("neon", "asimd"), ("lse", "atomics")]
)
def test_arm_feature_aliases_map_to_hwcaps(spelling: str, word: str) -> None:
    assert word in parse(f"arm64+{spelling}").extensions


def test_nfd_names_of_every_level_are_understood() -> None:
    for row in load("x86_levels")["levels"].values():
        for name in (*row["nfd"], *row["psabi"]):
            assert name.lower() in X86.features
    for word, row in load("arm_features")["features"].items():
        assert ARM.features[row["nfd"].lower()] == word


def test_levels_are_cumulative() -> None:
    closures = [parse(level).extensions for level in X86.levels]
    assert closures == sorted(closures, key=len)
    assert all(lower < higher for lower, higher in pairwise(closures))
    assert parse("armv9.2-a").extensions == parse("armv9.0-a").extensions | parse("armv8.7-a").extensions


def test_hidden_arm_features_are_outside_levels() -> None:
    assert "dit" not in parse("armv8.4-a").extensions
    assert "dit" in parse("armv8.4-a+dit").extensions


@pytest.mark.parametrize("family", [X86, ARM], ids=["x86", "arm"])
def test_joined_extension_names_are_unambiguous(family: Family) -> None:
    level = next(iter(family.levels))
    names = sorted(set(family.features.values()) - family.levels[level])
    with_underscore = [name for name in names if "_" in name]
    for one, other in permutations(names, 2):
        if one in with_underscore or other in with_underscore or f"{one}_{other}" in family.features:
            assert parse(f"{level}_{one}_{other}").explicit == {one, other}


def test_label_form_is_a_valid_label_value() -> None:
    isa = parse("x86-64-v3+avx512f+avx512_vnni")
    assert label_value(isa) == "x86-64-v3_avx512_vnni_avx512f"
    assert parse(label_value(isa) or "").extensions == isa.extensions
    assert label_value(parse("rv64gc_zba")) == "rv64imafdc_zicsr_zifencei_zba"


def test_text_longer_than_a_label_has_no_label_form() -> None:
    assert label_value(parse("rva22u64_v_zfh_zkn_zks_zicond_zimop_zcmop_zcb_zfa_zawrs_zvbb_zvkt_zbc")) is None
