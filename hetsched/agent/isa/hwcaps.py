"""Capability words that the kernel passes to every program (AT_HWCAP, AT_HWCAP2).

Programs do not parse /proc/cpuinfo but test these words. Each bit has one name, spelled as in /proc/cpuinfo. Arm uses
both words, and RISC-V has one bit for each letter. On x86, the first word is register EDX of CPUID leaf 1. A bit that
is not in this table belongs to a newer kernel and is ignored.
Source: Linux arch/arm64/include/uapi/asm/hwcap.h, Documentation/arch/riscv/uabi.rst, Intel SDM volume 2 CPUID.
"""

from __future__ import annotations

import struct

_AT_HWCAP, _AT_HWCAP2 = 16, 26
_ARM = """
fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 sm4
asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs sb paca pacg
"""
_ARM_2 = """
dcpodp sve2 sveaes svepmull svebitperm svesha3 svesm4 flagm2 frint svei8mm svef32mm svef64mm svebf16 i8mm bf16 dgh
rng bti mte ecv afp rpres mte3 sme smei16i64 smef64f64 smei8i32 smef16f32 smeb16f32 smef32f32 smefa64 wfxt ebf16
sveebf16 cssc rprfm sve2p1 sme2 sme2p1 smei16i32 smebi32i32 smeb16b16 smef16f16 mops hbc sveb16b16 lrcpc3 lse128
fpmr lut faminmax f8cvt f8fma f8dp4 f8dp2 f8e4m3 f8e5m2 smelutv2 smef8f16 smef8f32 smesf8fma smesf8dp4 smesf8dp2 poe
"""
# "-" is a reserved bit or a bit that is irrelevant to programs.
_X86 = "fpu vme de pse tsc msr pae mce cx8 apic - sep mtrr pge mca cmov pat pse36 pn clflush - - - mmx fxsr sse sse2"


def _bits(names: str) -> dict[int, str]:
    return {at: name for at, name in enumerate(names.split()) if name != "-"}


_TABLES: dict[str, tuple[dict[int, str], dict[int, str]]] = {
    "arm": (_bits(_ARM), _bits(_ARM_2)),
    "riscv": ({ord(letter) - ord("a"): letter for letter in "imafdcv"}, {}),
    "x86": (_bits(_X86), {}),
}


def capability_words(auxiliary_vector: bytes) -> tuple[int, int] | None:
    """Return AT_HWCAP and AT_HWCAP2 (0 if absent) from a 64-bit auxiliary vector; None if AT_HWCAP is absent."""
    whole = len(auxiliary_vector) // 16 * 16
    entries = dict(struct.iter_unpack("=QQ", auxiliary_vector[:whole]))
    return (entries[_AT_HWCAP], entries.get(_AT_HWCAP2, 0)) if _AT_HWCAP in entries else None


def capability_names(family: str, words: tuple[int, int]) -> frozenset[str]:
    """Return the names of the set bits."""
    tables = _TABLES.get(family, ({}, {}))
    return frozenset(
        name for table, word in zip(tables, words, strict=True) for at, name in table.items() if word >> at & 1
    )


def known_names(family: str) -> frozenset[str]:
    """Return every name that has a bit."""
    return frozenset(name for table in _TABLES.get(family, ()) for name in table.values())
