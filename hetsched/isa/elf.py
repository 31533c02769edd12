"""Requirement of an ELF program, derived from its bytes alone.

The machine type is read from the ELF header. On RISC-V the requirement is the attribute Tag_RISCV_arch, or else the
minimum that e_flags allows. On x86-64 it is the GNU property ISA-needed, or else level 1. On 64-bit Arm it is the
lowest level, because programs do not state more. 32-bit Arm is outside the lattice; its build attributes are reported
instead. The result is a requirement in the notation of this package.
Sources: System V gABI; riscv-elf-psabi "Attributes"; x86-64 psABI "Program Property".
Invariant: for any bytes the result is a requirement or an `InputError`; only the file is read.

A compiler records the target of an object in the section of build attributes. The section consists of a format version
and vendor sub-sections; these contain blocks for the file, whose entries are a tag and a number or a string. On RISC-V,
odd tags have strings, and Tag_RISCV_arch is the ISA string. On 32-bit Arm, Tag_CPU_arch, its profile, Tag_FP_arch and
Tag_Advanced_SIMD_arch are numbers; they are formatted as one word (`armv7-a+vfpv4+neon`).
Source: riscv-elf-psabi "Attributes"; Arm ABI "Addenda to, and Errata in, the ABI" (aaelf32, addenda32).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from hetsched.contracts.message import Message

from .codes import refuse
from .requirement import parse
from .riscv_table import VERSIONS

_TAG_FILE, _TAG_RISCV_ARCH = 1, 5
_CPU_ARCH, _CPU_PROFILE, _FP_ARCH, _SIMD_ARCH, _COMPATIBLE = 6, 7, 10, 12, 32
_ARM_NAMES = (
    "v3", "v4", "v4t", "v5t", "v5te", "v5tej", "v6", "v6kz", "v6t2", "v6k", "v7", "v6-m", "v6s-m", "v7e-m", "v8",
    "v8-r", "v8-m.base", "v8-m.main", "v8.1", "v8.2", "v8.3", "v8.1-m.main", "v9",
)  # fmt: skip
_FP_NAMES = ("", "vfpv1", "vfpv2", "vfpv3", "vfpv3", "vfpv4", "vfpv4", "fp-armv8", "fp-armv8")


def riscv_arch(blob: memoryview, order: str) -> str | None:
    """Return Tag_RISCV_arch, or None if absent. Raises: IndexError, struct.error."""
    for tag, value in _attributes(blob, order, "riscv", lambda tag: tag % 2 == 1):
        if tag == _TAG_RISCV_ARCH and isinstance(value, str) and value:
            return value
    return None


def arm_arch(blob: memoryview, order: str) -> str | None:
    """Return the build target of a 32-bit Arm object, or None if absent. Raises: IndexError, struct.error."""
    found = dict(_attributes(blob, order, "aeabi", lambda tag: tag in (4, 5) or (tag > _COMPATIBLE and tag % 2 == 1)))
    number = found.get(_CPU_ARCH)
    if not isinstance(number, int) or number >= len(_ARM_NAMES):
        return None
    name = _ARM_NAMES[number]
    profile = found.get(_CPU_PROFILE)
    if "-" not in name and profile in (ord("A"), ord("R"), ord("M")):
        name += f"-{chr(int(profile)).lower()}"
    floating, vectors = found.get(_FP_ARCH, 0), found.get(_SIMD_ARCH, 0)
    if isinstance(floating, int) and 0 < floating < len(_FP_NAMES):
        name += f"+{_FP_NAMES[floating]}"
    return f"arm{name}" + ("+neon" if vectors else "")


def _attributes(
    blob: memoryview, order: str, vendor: str, is_text: Callable[[int], bool]
) -> Iterator[tuple[int, int | str]]:
    if len(blob) == 0 or blob[0] != ord("A"):
        return
    at = 1
    while at + 4 <= len(blob):
        (length,) = struct.unpack_from(order + "I", blob, at)
        section = blob[at + 4 : at + length]
        name, body = _string(section, 0)
        while name == vendor and body < len(section):
            tag, start = _uleb(section, body)
            (size,) = struct.unpack_from(order + "I", section, start)
            if size <= start + 4 - body - 1:
                raise IndexError("an attribute block is empty")
            if tag == _TAG_FILE:
                yield from _entries(section[start + 4 : body + size], vendor, is_text)
            body += size
        at += max(length, 4)


def _entries(block: memoryview, vendor: str, is_text: Callable[[int], bool]) -> Iterator[tuple[int, int | str]]:
    at = 0
    while at < len(block):
        tag, at = _uleb(block, at)
        if vendor == "aeabi" and tag == _COMPATIBLE:
            _, at = _uleb(block, at)
            _, at = _string(block, at)
        elif is_text(tag):
            text, at = _string(block, at)
            yield tag, text
        else:
            number, at = _uleb(block, at)
            yield tag, number


def _uleb(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise IndexError("a number is larger than 64 bits")


def _string(data: memoryview, at: int) -> tuple[str, int]:
    end = bytes(data[at:]).find(b"\0")
    if end < 0:
        raise IndexError("unterminated string")
    return bytes(data[at : at + end]).decode("ascii", "replace"), at + end + 1


MACHINES = {
    3: "386", 8: "mips", 21: "ppc64", 22: "s390", 40: "arm", 62: "x86-64", 183: "aarch64", 243: "riscv",
    258: "loongarch",
}  # fmt: skip
# RISC-V and 32-bit Arm use the same section type for build attributes.
_SHT_NOTE, _SHT_ATTRIBUTES = 7, 0x7000_0003
_PT_NOTE, _PT_GNU_PROPERTY, _PT_RISCV_ATTRIBUTES = 4, 0x6474_E553, 0x7000_0003
_NT_GNU_PROPERTY_TYPE_0 = 5
_MAX_ENTRIES = 65_536
_MAX_NOTE_BYTES = 4 << 20
_X86_ISA_1_NEEDED = 0xC000_8002
_EF_RVC, _EF_FLOAT_ABI, _EF_RVE = 0x1, 0x6, 0x8
_FLOAT_ABI_LETTERS = {0: "", 2: "f", 4: "d", 6: "q"}


class ElfNeed(msgspec.Struct, frozen=True):
    """ISA requirement of an ELF program (None if its machine type is not modelled), and the `evidence` in the file."""

    machine: str
    bits: int
    requirement: str | None
    evidence: str
    arch_attribute: str | None = None


class _Header(NamedTuple):
    data: memoryview
    order: str
    bits: int
    machine: int
    flags: int
    # (type, file offset, size) of each segment or section.
    segments: list[tuple[int, int, int]]
    sections: list[tuple[int, int, int]]


def inspect_elf(data: bytes | memoryview) -> ElfNeed:
    """Return the requirement of a program. Raises: InputError (ElfMalformed, or a code of its RISC-V attribute)."""
    try:
        header = _read_header(memoryview(data))
        machine = MACHINES.get(header.machine, f"machine-{header.machine}")
        if machine == "riscv":
            return _riscv_need(header)
        if machine == "x86-64":
            return _x86_need(header)
        if machine == "arm":
            return _arm_need(header)
    except (struct.error, IndexError, OverflowError) as error:
        refuse("ElfMalformed", Message("the ELF file is truncated or inconsistent: {text}", text=str(error)))
    requirement = "armv8.0-a" if machine == "aarch64" else None
    return ElfNeed(machine=machine, bits=header.bits, requirement=requirement, evidence="ELF header")


def _read_header(data: memoryview) -> _Header:
    if bytes(data[:4]) != b"\x7fELF" or len(data) < 20 or data[4] not in (1, 2) or data[5] not in (1, 2):
        refuse("ElfMalformed", "the file is not an ELF file", hint="Pass a compiled program or an OCI image")
    bits, order = 32 * data[4], "<" if data[5] == 1 else ">"
    wide = bits == 64
    (machine,) = struct.unpack_from(order + "H", data, 18)
    fields = struct.unpack_from(order + ("QQIHHHHHH" if wide else "IIIHHHHHH"), data, 32 if wide else 28)
    segments_at, sections_at, flags, _, segment_size, segments, section_size, sections, _ = fields
    if sections == 0 and sections_at:
        # If there are more sections than the header can count, the size field of the first section contains the count.
        (sections,) = struct.unpack_from(order + ("Q" if wide else "I"), data, sections_at + (32 if wide else 20))
    # Type, then file offset and size, for 64-bit or 32-bit files.
    segment_form = order + ("I4xQ16xQ" if wide else "II8xI")
    section_form = order + ("4xI16xQQ" if wide else "4xI8xII")
    return _Header(
        data,
        order,
        bits,
        machine,
        flags,
        list(_table(data, segment_form, segments_at, segments, segment_size)),
        list(_table(data, section_form, sections_at, sections, section_size)),
    )


def _table(data: memoryview, form: str, start: int, count: int, size: int) -> Iterator[tuple[int, int, int]]:
    least = struct.calcsize(form)
    if count > _MAX_ENTRIES:
        refuse("ElfMalformed", Message("the ELF file has more than {n} entries in a header table", n=_MAX_ENTRIES))
    if count and (size < least or start + count * size > len(data)):
        refuse("ElfMalformed", "a header table lies outside the ELF file")
    for index in range(count):
        kind, offset, length = struct.unpack_from(form, data, start + index * size)
        yield kind, offset, length


def _blobs(header: _Header, segment_kinds: tuple[int, ...], section_kind: int) -> Iterator[memoryview]:
    """Yield the contents of the segments and sections of these types.

    Both are searched, because a stripped file may have only the segment or only the section.
    """
    wanted = [entry for entry in header.segments if entry[0] in segment_kinds]
    wanted += [entry for entry in header.sections if entry[0] == section_kind]
    remaining = _MAX_NOTE_BYTES  # entries may overlap, so their total size is limited
    for _, offset, length in wanted:
        remaining -= length
        if remaining < 0:
            refuse(
                "ElfMalformed",
                Message("the ELF file has more than {n} bytes of notes or attributes", n=_MAX_NOTE_BYTES),
            )
        if offset + length > len(header.data):
            refuse("ElfMalformed", "a part of the ELF file lies outside the file")
        yield header.data[offset : offset + length]


def _riscv_need(header: _Header) -> ElfNeed:
    for blob in _blobs(header, (_PT_RISCV_ATTRIBUTES,), _SHT_ATTRIBUTES):
        if arch := riscv_arch(blob, header.order):
            return ElfNeed("riscv", header.bits, requirement_of_arch(arch), "Tag_RISCV_arch", arch)
    letters = "e" if header.flags & _EF_RVE else "i"
    letters += _FLOAT_ABI_LETTERS[header.flags & _EF_FLOAT_ABI] + ("c" if header.flags & _EF_RVC else "")
    return ElfNeed("riscv", header.bits, parse(f"rv{header.bits}{letters}").canonical, "e_flags")


def _arm_need(header: _Header) -> ElfNeed:
    """Return the result for a 32-bit Arm program: no requirement, but its build target as evidence."""
    for blob in _blobs(header, (), _SHT_ATTRIBUTES):
        if arch := arm_arch(blob, header.order):
            return ElfNeed("arm", header.bits, None, "Tag_CPU_arch", arch)
    return ElfNeed("arm", header.bits, None, "ELF header")


def requirement_of_arch(arch: str) -> str:
    """Return an ISA string in canonical form, without versions that are compatible with the table.

    Incompatible versions are kept, because they denote drafts of an extension.

    Raises: InputError.
    """
    isa = parse(arch)
    stated = {name: (major, minor) for name, major, minor in isa.versions if name != isa.base}
    drafts = {name for name, version in stated.items() if name in VERSIONS and version[0] != VERSIONS[name][0]}
    if not drafts:
        return isa.canonical
    words = sorted(isa.explicit - {isa.base})
    versioned = [name + "{}p{}".format(*stated[name]) if name in drafts else name for name in words]
    return "_".join((f"rv{isa.xlen}{isa.base}", *versioned))


def _x86_need(header: _Header) -> ElfNeed:
    needed = 0
    if header.bits == 64:
        for blob in _blobs(header, (_PT_NOTE, _PT_GNU_PROPERTY), _SHT_NOTE):
            for bits in _needed_bits(blob, header.order):
                needed |= bits
    level = max(needed.bit_length(), 1)
    if level > 4:
        refuse(
            "IsaUnknownLevel",
            Message(
                "the program requires x86-64 level bits {text}, but only levels 1 to 4 are known", text=f"{needed:#x}"
            ),
        )
    return ElfNeed("x86-64", header.bits, f"x86-64-v{level}", "GNU property ISA needed" if needed else "ELF header")


def _needed_bits(blob: memoryview, order: str) -> Iterator[int]:
    """Yield the ISA-needed masks of the GNU property notes; entries are padded to 8 bytes in 64-bit files."""
    at = 0
    while at + 12 <= len(blob):
        name_size, size, kind = struct.unpack_from(order + "III", blob, at)
        name = bytes(blob[at + 12 : at + 12 + name_size])
        start = at + 12 + (name_size + 3) // 4 * 4
        if kind == _NT_GNU_PROPERTY_TYPE_0 and name == b"GNU\0":
            inner = start
            while inner + 8 <= start + size:
                property_kind, data_size = struct.unpack_from(order + "II", blob, inner)
                if property_kind == _X86_ISA_1_NEEDED and data_size >= 4:
                    yield struct.unpack_from(order + "I", blob, inner + 8)[0]
                inner += 8 + (data_size + 7) // 8 * 8
        at = start + (size + 7) // 8 * 8 if kind == _NT_GNU_PROPERTY_TYPE_0 else start + (size + 3) // 4 * 4
