"""Instruction sets that a node offers by emulation: QEMU user mode through binfmt_misc.

An entry offers a machine if binfmt_misc and the entry are enabled, its magic contains the machine (ELF bytes 18 and
19) at 64 bit (byte 4), and flag F is set: the interpreter is opened at registration, so it works inside containers.
The offer is the instruction set of the CPU model.
Source: Linux Documentation/admin-guide/binfmt-misc.rst; the model of QEMU 7.2 was measured by running programs.
"""

from __future__ import annotations

import msgspec

from .codes import refuse
from .requirement import parse
from .value import Isa

# Usable extensions under QEMU 7.2's default riscv64 model; the hint instructions run everywhere as no-ops.
QEMU_72_RISCV64 = "rv64imafdc_zicntr_zicsr_zifencei_zihintntl_zihintpause_zicbop_zba_zbb_zbc_zbs"
_DEFAULT_MODELS = {"riscv64": QEMU_72_RISCV64, "aarch64": "armv8.0-a", "x86_64": "x86-64-v1"}
_MACHINES = {b"\xf3\x00": "riscv64", b"\xb7\x00": "aarch64", b"\x3e\x00": "x86_64"}


class EmulatedOffer(msgspec.Struct, frozen=True):
    """One instruction set that a node can emulate, and the emulating program."""

    isa: Isa
    by: str
    version: str | None = None


def offer_from_binfmt(
    entry: str, *, enabled: bool, model: str | None = None, version: str | None = None
) -> EmulatedOffer | None:
    """Read one file below /proc/sys/fs/binfmt_misc; `enabled` is the global status.

    `model` is the instruction set of the emulated CPU if known (`QEMU_CPU`, a newer default); otherwise the minimum of
    all supported QEMU versions is assumed. Returns None if containers cannot use the entry, or it is not 64 bit.
    Raises: InputError.
    """
    lines = entry.split("\n")
    fields = dict(_field(line) for line in lines[1:] if line.strip())
    if lines[0].strip() not in ("enabled", "disabled"):
        refuse("BinfmtMalformed", "a binfmt_misc entry begins with enabled or disabled")
    try:
        magic, offset = bytes.fromhex(fields.get("magic", "")), int(fields.get("offset", "0"))
    except ValueError:
        refuse("BinfmtMalformed", "magic or offset of the binfmt_misc entry is no number")
    machine = _MACHINES.get(magic[18:20]) if offset == 0 and magic[4:5] == b"\x02" else None
    usable = enabled and lines[0].strip() == "enabled" and "F" in fields.get("flags", "")
    if machine is None or not usable:
        return None
    isa = parse(model or _DEFAULT_MODELS[machine], source="dt-isa-extensions")
    return EmulatedOffer(isa=isa, by=fields.get("interpreter", "qemu"), version=version)


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.strip().partition(" ")
    return name.rstrip(":"), value.strip()
