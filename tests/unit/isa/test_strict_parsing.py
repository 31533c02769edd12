"""Strict parsing: every wrong string gets its own error code."""

import pytest

from hetsched.contracts.errors import InputError
from hetsched.isa import parse
from hetsched.isa.codes import CODES
from hetsched.isa.value import STRICT_SOURCES

WRONG = [
    ("", "IsaEmpty"),
    ("   ", "IsaEmpty"),
    ("rv64i" + "m" * 5000, "IsaTooLong"),
    ("mips64", "IsaUnknownArchitecture"),
    ("s390x", "IsaUnknownArchitecture"),
    ("riscv64", "IsaUnknownArchitecture"),
    ("linux/riscv64", "IsaUnknownArchitecture"),
    ("rv16i", "IsaUnknownArchitecture"),
    ("rv", "IsaUnknownArchitecture"),
    ("rv128i", "IsaUnratified"),
    ("rv64", "IsaMissingBase"),
    ("rv64mafd", "IsaMissingBase"),
    ("rv64_i", "IsaMissingBase"),
    ("rv64gi", "IsaRepeatedItem"),
    ("rv64ig", "IsaRepeatedItem"),
    ("rv64gm", "IsaRepeatedItem"),
    ("rv64imm", "IsaRepeatedItem"),
    ("rv64g_zicsr_zicsr", "IsaRepeatedItem"),
    ("rv64i_zba_zba", "IsaRepeatedItem"),
    ("rv64i_zba1p0_zba", "IsaRepeatedItem"),
    ("rva23u64_v", "IsaRepeatedItem"),
    ("rva22u64_i", "IsaRepeatedItem"),
    ("rv64gc_", "IsaEmptyItem"),
    ("rv64gc__zba", "IsaEmptyItem"),
    ("rva22u64_", "IsaEmptyItem"),
    ("rva22u64__v", "IsaEmptyItem"),
    ("rv64gc_zfoo", "IsaUnknownExtension"),
    ("rv64gc_sfoo", "IsaUnknownExtension"),
    ("rv64iy", "IsaUnknownExtension"),
    ("rv64gc_z", "IsaUnknownExtension"),
    ("rv64gcx", "IsaUnknownExtension"),
    ("rv64imafdcsu", "IsaUnknownExtension"),
    ("rv64imafdcu", "IsaUnknownExtension"),
    ("rv64imafdcsux", "IsaUnknownExtension"),
    ("rv64gcp", "IsaUnratified"),
    ("rv64gc zba", "IsaBadCharacter"),
    ("rv64gc_zb-a", "IsaBadCharacter"),
    ("rv64i_2", "IsaBadCharacter"),
    ("rv64i\u212a", "IsaBadCharacter"),  # the Kelvin sign, whose lower case is k
    ("rv64i_m2p", "IsaBadVersion"),
    ("rv64i2p", "IsaBadVersion"),
    ("rv64g2p0", "IsaBadVersion"),
    ("rv64i_zba2p", "IsaBadVersion"),
    ("rv64ie", "IsaConflict"),
    ("rv64eg", "IsaConflict"),
    ("rv64gc_zfinx", "IsaConflict"),
    ("rv64gc_zcmp", "IsaConflict"),
    ("rv32icd_zcmt", "IsaConflict"),
    ("rv32ifc_zclsd", "IsaConflict"),
    ("rv64i_zcf", "IsaWrongXlen"),
    ("rv64i_zilsd", "IsaWrongXlen"),
    ("rv64i_zvl128b", "IsaMissingDependency"),
    ("rva99u64", "IsaUnknownProfile"),
    ("rva22u64v", "IsaUnknownProfile"),
    ("rva22", "IsaUnknownProfile"),
    ("x86-64-v5", "IsaUnknownLevel"),
    ("x86-32", "IsaUnknownLevel"),
    ("armv7-a", "IsaUnknownLevel"),
    ("armv8.10-a", "IsaUnknownLevel"),
    ("armhf", "IsaUnknownLevel"),
    ("risc", "IsaUnknownArchitecture"),
    ("ARM+sve", "IsaUnknownLevel"),
    ("x86-64-v3+avx512ff", "IsaUnknownExtension"),
    ("arm64+avx2", "IsaUnknownExtension"),
    ("amd64+", "IsaEmptyItem"),
    ("amd64_", "IsaEmptyItem"),
    ("amd64++avx", "IsaEmptyItem"),
    ("amd64+lzcnt+abm", "IsaRepeatedItem"),
]


@pytest.mark.parametrize(("text", "code"), WRONG)
def test_invalid_label_is_rejected_with_its_code(text: str, code: str) -> None:
    for source in STRICT_SOURCES:
        with pytest.raises(InputError) as refusal:
            parse(text, source=source)
        assert refusal.value.code == code
        assert refusal.value.message


def test_unknown_source_is_rejected() -> None:
    with pytest.raises(InputError) as refusal:
        parse("rv64gc", source="rumour")  # type: ignore[arg-type]
    assert refusal.value.code == "IsaUnknownSource"


def test_misspelt_feature_has_a_suggestion() -> None:
    with pytest.raises(InputError) as refusal:
        parse("x86-64-v3+avx512ff")
    assert "avx512f" in refusal.value.hint


def test_error_codes_have_messages() -> None:
    assert {code for _, code in WRONG} <= CODES.keys()
    assert all(sentence.endswith(".") for sentence in CODES.values())
