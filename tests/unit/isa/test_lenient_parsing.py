"""Lenient parsing of cpuinfo, device tree and gcc: implausible items are dropped, never guessed."""

import pytest

from hetsched.contracts.errors import InputError
from hetsched.isa import parse

BASE = "rv64imafdc"


@pytest.mark.parametrize(
    ("text", "canonical", "untrusted"),
    [
        # Old privilege marks: dropped; b and v of that era meant other instructions.
        ("rv64imafdcsu", BASE, ()),
        ("rv64imafdcu", BASE, ()),
        ("rv64imafdcsux", BASE, ()),
        ("rv64imafdcbsux", BASE, ("b",)),
        ("rv64imafdcvsu", BASE, ("v",)),
        ("rv64imafdcvu", BASE, ("v",)),
        ("rv64imafdcvsu_zve64d", "rv64imafdcv_zve64d", ()),
        ("rv64imafdcsu_zba", "rv64imafdc_zba", ()),
        # Three parts together give the bundle's name again.
        ("rv64imafdcbsux_zba_zbb_zbs", "rv64imafdc_zba_zbb_zbs", ()),
        # After a _ it is an ordinary name.
        ("rv64imafdc_supm", "rv64imafdc_supm", ()),
        # A stated major version other than the table's is a draft.
        ("rv64imafdcv0p7", BASE, ("v",)),
        ("rv64imafdc_zba0p93", BASE, ("zba",)),
        ("rv64imafdc_zba1p9", "rv64imafdc_zba", ()),
        # Repeated and empty items, unknown names, order.
        ("rv64imafdcc_zba__zba_", "rv64imafdc_zba", ()),
        ("rv64i_i_m_a_f_d_c", BASE, ()),
        ("rv64imafdcy_zfoo_sfoo", "rv64imafdcy_zfoo_sfoo", ()),
        ("rv64imafdcp", "rv64imafdcp", ()),
        ("rv64i2p0m2p0a2p0f2p0d2p0c2p0xv5-0p0", BASE, ("xv5-0p0",)),
        # Conflicts, the other width and a lone vector length are kept as reported.
        ("rv64imafdc_zcmp_zilsd_zvl64b", "rv64imafdc_zilsd_zcmp_zvl64b", ()),
    ],
)
def test_valid_parts_of_a_kernel_string_are_kept(text: str, canonical: str, untrusted: tuple[str, ...]) -> None:
    isa = parse(text, source="cpuinfo")
    assert (isa.canonical, isa.untrusted) == (canonical, untrusted)


def test_dropped_names_leave_no_vector_extension() -> None:
    assert "zve32x" not in parse("rv64imafdcvsu", source="cpuinfo").extensions


@pytest.mark.parametrize("text", ["rv64", "rv64m", "", "banana"])
def test_string_without_width_or_base_has_no_valid_part(text: str) -> None:
    with pytest.raises(InputError):
        parse(text, source="cpuinfo")


def test_unknown_flags_of_newer_kernels_are_kept() -> None:
    isa = parse("x86-64-v2+some_new_flag", source="cpuinfo")
    assert "some_new_flag" in isa.extensions
    assert parse(isa.canonical, source="cpuinfo").extensions == isa.extensions
