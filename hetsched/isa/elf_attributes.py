"""Build attributes: the ELF section in which a compiler records the target of an object.

A format version, then vendor sub-sections, each with blocks for the file, whose entries are a tag and a number or a
string. RISC-V: odd tags are strings, Tag_RISCV_arch is the ISA string. 32-bit Arm: Tag_CPU_arch, its profile,
Tag_FP_arch and Tag_Advanced_SIMD_arch are numbers, formatted as one word (`armv7-a+vfpv4+neon`).
Source: riscv-elf-psabi "Attributes"; Arm ABI "Addenda to, and Errata in, the ABI" (aaelf32, addenda32).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

_TAG_FILE, _TAG_RISCV_ARCH = 1, 5
_CPU_ARCH, _CPU_PROFILE, _FP_ARCH, _SIMD_ARCH, _COMPATIBLE = 6, 7, 10, 12, 32
_ARM_NAMES = (
    "v3", "v4", "v4t", "v5t", "v5te", "v5tej", "v6", "v6kz", "v6t2", "v6k", "v7", "v6-m", "v6s-m", "v7e-m", "v8",
    "v8-r", "v8-m.base", "v8-m.main", "v8.1", "v8.2", "v8.3", "v8.1-m.main", "v9",
)  # fmt: skip
_FP_NAMES = ("", "vfpv1", "vfpv2", "vfpv3", "vfpv3", "vfpv4", "vfpv4", "fp-armv8", "fp-armv8")


def riscv_arch(blob: memoryview, order: str) -> str | None:
    """Return Tag_RISCV_arch, None if absent. Raises: IndexError, struct.error."""
    for tag, value in _attributes(blob, order, "riscv", lambda tag: tag % 2 == 1):
        if tag == _TAG_RISCV_ARCH and isinstance(value, str) and value:
            return value
    return None


def arm_arch(blob: memoryview, order: str) -> str | None:
    """Return the build target of a 32-bit Arm object, None if absent. Raises: IndexError, struct.error."""
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
                raise IndexError("an attribute block without content")
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
            raise IndexError("a number of more than 64 bits")


def _string(data: memoryview, at: int) -> tuple[str, int]:
    end = bytes(data[at:]).find(b"\0")
    if end < 0:
        raise IndexError("a string without end")
    return bytes(data[at : at + end]).decode("ascii", "replace"), at + end + 1
