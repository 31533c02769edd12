"""Decoding of AT_HWCAP words, riscv_hwprobe, and the predefined macros of compilers."""

from __future__ import annotations

import struct

import pytest

from hetsched.agent.isa.compilers import read_compiler
from hetsched.agent.isa.hwcaps import capability_names, capability_words, known_names
from hetsched.agent.isa.probe import query_kernel_isa
from hetsched.isa import parse
from hetsched.isa.arm import ARM
from hetsched.isa.x86 import X86


def vector(**entries: int) -> bytes:
    numbers = {"hwcap": 16, "hwcap2": 26, "page": 6}
    return b"".join(struct.pack("=QQ", numbers[name], value) for name, value in entries.items()) + bytes(16)


def test_both_hwcap_words_are_read_from_the_auxiliary_vector() -> None:
    assert capability_words(vector(page=4096, hwcap=0x11, hwcap2=0x2)) == (0x11, 0x2)
    assert capability_words(vector(page=4096)) is None
    assert capability_words(b"short") is None


def test_arm_words_have_the_kernels_names() -> None:
    # Cortex-A72 of a Raspberry Pi 4: bits 0 fp, 1 asimd, 2 evtstrm, 7 crc32, 11 cpuid = 0x887.
    assert capability_names("arm", (0x887, 0)) == {"fp", "asimd", "evtstrm", "crc32", "cpuid"}
    # sve is bit 22 of the first word, sve2 bit 1 and i8mm bit 13 of the second.
    assert capability_names("arm", (1 << 22, 1 << 1 | 1 << 13)) == {"sve", "sve2", "i8mm"}
    assert known_names("arm") <= set(ARM.features.values())


def test_riscv_words_are_letters() -> None:
    # a 1, c 4, d 8, f 32, i 256, m 4096: 0x112d. v is bit 21.
    assert capability_names("riscv", (0x112D, 0)) == set("imafdc")
    assert capability_names("riscv", (0x112D | 1 << 21, 0)) == set("imafdcv")


def test_x86_hwcap_is_the_edx_word_of_cpuid() -> None:
    names = capability_names("x86", (0x178BFBFF, 2))
    assert {"fpu", "cmov", "sse2", "clflush"} <= names
    assert names <= set(X86.features.values())


def test_hwprobe_reports_the_features_of_its_bits() -> None:
    # Bits 0 fd, 1 c, 2 v, 3 zba, 4 zbb, 35 zicond.
    bits = 0b11111 | 1 << 35
    assert query_kernel_isa(lambda keys: {keys[0]: 1, keys[1]: bits}) == "rv64imafdcv_zba_zbb_zicond"
    assert query_kernel_isa(lambda keys: {keys[0]: 1, keys[1]: 0}) == "rv64ima"


@pytest.mark.parametrize("answers", [None, {}, {3: 0, 4: 7}])
def test_kernel_without_an_answer_reports_nothing(answers: dict[int, int] | None) -> None:
    assert query_kernel_isa(lambda _: answers) is None


def test_every_name_of_hwprobe_is_an_extension() -> None:
    everything = query_kernel_isa(lambda keys: {keys[0]: 1, keys[1]: (1 << 59) - 1})
    assert everything is not None
    isa = parse(everything, source="dt-isa-extensions")
    assert {"v", "zvfh", "zabha", "zicbom"} <= isa.extensions


@pytest.mark.parametrize(
    ("said", "canonical"),
    [
        ("Target: riscv64-linux-gnu\nConfigured with: ../configure --with-arch=rv64gc --with-abi=lp64d\n", "rv64gc"),
        ("Target: riscv64-unknown-linux-gnu\nConfigured with: ../configure --with-arch=rv64imafdcv\n", "rv64imafdcv"),
        ("Target: riscv64-linux-gnu\nConfigured with: ../configure\n", "rv64gc"),
        ("Target: x86_64-linux-gnu\nConfigured with: x --with-arch-32=i686\n", "x86-64-v1"),
        ("Target: x86_64-redhat-linux\nConfigured with: x --with-arch_64=x86-64-v2\n", "x86-64-v2"),
        ("Target: aarch64-linux-gnu\nConfigured with: x --with-arch=armv8.2-a+crypto\n", "armv8.2-a"),
        ("Target: s390x-linux-gnu\nConfigured with: x --with-arch=zEC12\n", None),
    ],
)
def test_compiler_reports_its_target(said: str, canonical: str | None) -> None:
    compiler = read_compiler(said)
    assert compiler is not None
    expected = parse(canonical, source="gcc").canonical if canonical else None
    assert (compiler.isa.canonical if compiler.isa else None) == expected


def test_non_compiler_reports_nothing() -> None:
    assert read_compiler("clang version 14\n") is None
