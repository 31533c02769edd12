"""Well-formed RISC-V strings and profiles: base, names, canonical text."""

import pytest

from hetsched.isa import parse
from hetsched.isa.value import Source


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("rv64gc", "rv64imafdc_zicsr_zifencei"),
        ("RV64IMFDV", "rv64imfdv"),
        ("rv64gc_zba_zbb", "rv64imafdc_zicsr_zifencei_zba_zbb"),
        ("RV64GC_Zba_Zbb", "rv64imafdc_zicsr_zifencei_zba_zbb"),
        ("rv64i_m_a", "rv64ima"),
        ("rv64icdfam", "rv64imafdc"),
        ("rv64imaczba", "rv64imac_zba"),
        ("  rv32e  ", "rv32e"),
        ("rv64g_zicsr", "rv64imafd_zicsr_zifencei"),
        ("rv64g_zifencei", "rv64imafd_zicsr_zifencei"),
        ("rv64gc+zba", "rv64imafdc_zicsr_zifencei_zba"),
        ("rv64i2p1_m2_zba1p0", "rv64im_zba"),
        ("rv64i_sv39_xventanacondops_zicbom_zba_svinval_h", "rv64ih_zicbom_zba_sv39_svinval_xventanacondops"),
        # Z names by second letter in the order i m a f d q l c b k j t p v h, then by alphabet.
        ("rv64iv_zvbb_zkt_zbb_zcb_zfh_zawrs_zmmul_zicond", "rv64iv_zicond_zmmul_zawrs_zfh_zcb_zbb_zkt_zvbb"),
        ("rv64i_xanything", "rv64i_xanything"),
        ("rva22u64", "rva22u64"),
        ("rva22u64_v", "rva22u64_v"),
        ("RVA22U64_ZFH_V", "rva22u64_v_zfh"),
        ("rva22u64+v", "rva22u64_v"),
        # B, not Zba, is named by the profile: no repetition.
        ("rva22u64_zba", "rva22u64_zba"),
        ("rvi20u32_m", "rvi20u32_m"),
    ],
)  # fmt: skip
def test_string_has_its_canonical_text(text: str, canonical: str) -> None:
    isa = parse(text)
    assert (isa.arch, isa.canonical, isa.input) == ("riscv", canonical, text)
    assert parse(canonical).extensions == isa.extensions


def test_width_and_base_are_read() -> None:
    assert [(parse(text).xlen, parse(text).base) for text in ("rv32e", "rv64g", "rvi20u32", "rva23s64")] == [
        (32, "e"),
        (64, "i"),
        (32, "i"),
        (64, "i"),
    ]


def test_closure_omits_the_base_letter() -> None:
    isa = parse("rv64imc")
    assert isa.extensions == {"m", "zmmul", "c", "zca"}
    assert isa.explicit == {"i", "m", "c"}


def test_profile_contains_its_mandatory_extensions() -> None:
    isa = parse("rva22u64_v")
    assert isa.profile == "rva22u64"
    assert {"i", "b", "zicbom", "zkt", "v"} <= isa.explicit


def test_versions_are_kept_with_the_names() -> None:
    assert parse("rv64i2p1_m2_zba1p0").versions == (("i", 2, 1), ("m", 2, 0), ("zba", 1, 0))


def test_number_after_p_is_the_minor_version() -> None:
    assert parse("rv32i2p2").versions == (("i", 2, 2),)


def test_names_that_end_in_a_digit_are_no_versions() -> None:
    isa = parse("rv64i_sv48")
    assert {"sv48", "sv39"} <= isa.extensions
    assert parse("rv64i_sv391p0").versions == (("sv39", 1, 0),)


def test_pod_never_gets_undeclared_extensions() -> None:
    assert parse("rv64imac").extensions.isdisjoint({"zicsr", "zifencei", "zicntr", "zihpm"})


@pytest.mark.parametrize("source", ["node-label", "cpuinfo", "dt-isa", "gcc"])
def test_node_string_before_2019_gets_the_former_parts_of_i(source: Source) -> None:
    isa = parse("rv64imac", source=source)
    assert {"zicsr", "zifencei", "zicntr", "zihpm"} <= isa.extensions
    assert isa.canonical == "rv64imac"


def test_device_tree_list_and_base_e_get_no_zicsr() -> None:
    assert "zicsr" not in parse("rv64imac", source="dt-isa-extensions").extensions
    assert "zicsr" not in parse("rv32e", source="cpuinfo").extensions
