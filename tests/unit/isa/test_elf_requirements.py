"""ELF files, byte by byte: machine, RISC-V attributes, x86 ISA-needed notes."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.contracts.errors import InputError
from hetsched.isa.elf import inspect_elf

RISCV, X86_64, AARCH64, ARM, I386 = 243, 62, 183, 40, 3
PT_RISCV_ATTRIBUTES, PT_NOTE, PT_GNU_PROPERTY = 0x70000003, 4, 0x6474E553
SHT_RISCV_ATTRIBUTES = 0x70000003


def elf(
    machine: int,
    *,
    flags: int = 0,
    bits: int = 64,
    order: str = "<",
    segments: tuple[tuple[int, bytes], ...] = (),
    sections: tuple[tuple[int, bytes], ...] = (),
) -> bytes:
    """Return header, segment table, section table, then the contents."""
    wide = bits == 64
    header_size, segment_size, section_size = (64, 56, 64) if wide else (52, 32, 40)
    segments_at = header_size
    sections_at = segments_at + segment_size * len(segments)
    at = sections_at + section_size * len(sections)
    identity = b"\x7fELF" + bytes([bits // 32, 1 if order == "<" else 2, 1]) + bytes(9)
    header = identity + struct.pack(
        order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"),
        2, machine, 1, 0, segments_at, sections_at if sections else 0, flags,
        header_size, segment_size, len(segments), section_size, len(sections), 0,
    )  # fmt: skip
    tables, contents = b"", b""
    for kind, content in segments:
        form, fields = ("IIQQQQQQ", (kind, 4, at, 0, 0, len(content), len(content), 8))
        if not wide:
            form, fields = ("IIIIIIII", (kind, at, 0, 0, len(content), len(content), 4, 4))
        tables += struct.pack(order + form, *fields)
        contents += content
        at += len(content)
    for kind, content in sections:
        form = "IIQQQQIIQQ" if wide else "IIIIIIIIII"
        tables += struct.pack(order + form, 0, kind, 0, 0, at, len(content), 0, 0, 1, 0)
        contents += content
        at += len(content)
    return header + tables + contents


def attributes(arch: str | None, *, vendor: bytes = b"riscv\0") -> bytes:
    """Return stack alignment 16 (tag 4, a number), then the architecture (tag 5, a string)."""
    body = b"\x04\x10" + (b"\x05" + arch.encode() + b"\0" if arch is not None else b"")
    block = b"\x01" + struct.pack("<I", len(body) + 5) + body
    return b"A" + struct.pack("<I", len(vendor) + len(block) + 4) + vendor + block


def isa_note(needed: int, *, before: bytes = b"") -> bytes:
    properties = struct.pack("<IIII", 0xC0010002, 4, 0xF, 0) + struct.pack("<IIII", 0xC0008002, 4, needed, 0)
    return before + struct.pack("<III4s", 4, len(properties), 5, b"GNU\0") + properties


@pytest.mark.parametrize(
    ("arch", "requirement"),
    [
        ("rv64i2p1_m2p0_a2p1_f2p2_d2p2_c2p0_zicsr2p0_zifencei2p0", "rv64imafdc_zicsr_zifencei"),
        ("rv64i2p0_m2p0_a2p0_f2p0_d2p0_v1p0_zba1p0_zvl128b1p0", "rv64imafdv_zba_zvl128b"),
        # A draft keeps its version: RVV 0.7 code does not run on RVV 1.0.
        ("rv64i2p0_v0p7", "rv64i_v0p7"),
    ],
)
def test_riscv_program_requires_its_architecture_attribute(arch: str, requirement: str) -> None:
    as_segment = elf(RISCV, segments=((PT_RISCV_ATTRIBUTES, attributes(arch)),))
    as_section = elf(RISCV, sections=((0, b""), (SHT_RISCV_ATTRIBUTES, attributes(arch))))
    for program in (as_segment, as_section):
        need = inspect_elf(program)
        assert (need.machine, need.requirement, need.arch_attribute) == ("riscv", requirement, arch)


def test_riscv_32_bit_program_is_read() -> None:
    program = elf(RISCV, bits=32, segments=((PT_RISCV_ATTRIBUTES, attributes("rv32e1p9_c2p0")),))
    assert (inspect_elf(program).requirement, inspect_elf(program).bits) == ("rv32ec", 32)


@pytest.mark.parametrize(
    ("flags", "requirement"), [(0x0, "rv64i"), (0x5, "rv64idc"), (0x3, "rv64ifc"), (0x7, "rv64iqc"), (0x8, "rv64e")]
)
def test_flags_are_used_without_the_attribute(flags: int, requirement: str) -> None:
    for segments in (
        (),
        ((PT_RISCV_ATTRIBUTES, attributes(None)),),
        ((PT_RISCV_ATTRIBUTES, attributes("rv32i", vendor=b"gnu\0")),),
    ):
        need = inspect_elf(elf(RISCV, flags=flags, segments=segments))
        assert (need.requirement, need.evidence) == (requirement, "e_flags")


@pytest.mark.parametrize(("needed", "level"), [(0b1, 1), (0b11, 2), (0b111, 3), (0b1111, 4), (0b100, 3), (0, 1)])
def test_x86_program_requires_its_highest_level_bit(needed: int, level: int) -> None:
    program = elf(X86_64, segments=((PT_NOTE, isa_note(needed)),))
    assert inspect_elf(program).requirement == f"x86-64-v{level}"


def test_notes_before_the_isa_note_are_skipped() -> None:
    other = struct.pack("<III4s", 4, 5, 1, b"GNU\0") + b"12345678"
    program = elf(X86_64, segments=((PT_GNU_PROPERTY, isa_note(0b111, before=other)),))
    assert inspect_elf(program).requirement == "x86-64-v3"


def test_unknown_x86_level_bit_is_rejected() -> None:
    with pytest.raises(InputError) as refusal:
        inspect_elf(elf(X86_64, segments=((PT_NOTE, isa_note(0b10000)),)))
    assert refusal.value.code == "IsaUnknownLevel"


@pytest.mark.parametrize(
    ("machine", "name", "requirement"),
    [
        (X86_64, "x86-64", "x86-64-v1"),
        (AARCH64, "aarch64", "armv8.0-a"),
        (ARM, "arm", None),
        (I386, "386", None),
        (9999, "machine-9999", None),
    ],
)
def test_elf_header_gives_the_machine(machine: int, name: str, requirement: str | None) -> None:
    assert (inspect_elf(elf(machine)).machine, inspect_elf(elf(machine)).requirement) == (name, requirement)


def test_big_endian_files_are_read() -> None:
    assert inspect_elf(elf(22, order=">")).machine == "s390"


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF" + bytes(60), elf(X86_64)[:40]])
def test_malformed_elf_is_rejected(data: bytes) -> None:
    with pytest.raises(InputError) as refusal:
        inspect_elf(data)
    assert refusal.value.code == "ElfMalformed"


WHOLE = (
    elf(
        RISCV,
        segments=((PT_RISCV_ATTRIBUTES, attributes("rv64gc")),),
        sections=((SHT_RISCV_ATTRIBUTES, attributes("rv64i")),),
    ),
    elf(X86_64, segments=((PT_NOTE, isa_note(7)),), sections=((7, isa_note(3)),)),
)


@given(
    st.sampled_from(WHOLE),
    st.integers(0, 400),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
)
def test_damaged_files_give_a_result_or_a_refusal(data: bytes, length: int, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(data)
    for at, byte in changes:
        damaged[at % len(damaged)] = byte
    with suppress(InputError):
        assert inspect_elf(bytes(damaged[: length or None])).machine


def test_out_of_range_offset_is_rejected() -> None:
    # More sections than the header counts, at the last possible address.
    data = bytearray(elf(RISCV))
    data[40:48], data[60:62] = b"\xff" * 8, bytes(2)
    with pytest.raises(InputError):
        inspect_elf(bytes(data))
