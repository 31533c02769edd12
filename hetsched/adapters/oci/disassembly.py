"""Hints about the requirements of a program from the instructions that occur in it; hints are never requirements.

A compiler records the features that it built for, but hand-written or guarded code may use more. Because a CPU feature
test may guard an instruction, a hint states only that the instruction occurs, how often it occurs, and its feature.
Without a disassembler for the machine, there are no hints.
Source: the mnemonics of GNU objdump.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.isa.elf import inspect_elf

_SECONDS = 60
_PREFIXES = {"riscv": "riscv64-linux-gnu-", "aarch64": "aarch64-linux-gnu-", "x86-64": "x86_64-linux-gnu-"}
# machine -> (pattern of an instruction with its operands, feature in the kernel's spelling); the first match is used.
_PATTERNS: dict[str, tuple[tuple[str, str], ...]] = {
    "x86-64": (
        (r".*%zmm", "avx512f"), (r"vfn?m(add|sub)", "fma"), (r"vcvt(ph2ps|ps2ph)", "f16c"), (r"vp.*%ymm", "avx2"),
        (r"v.*%[xy]mm", "avx"), (r"(andn|bextr|blsi|blsmsk|blsr|tzcnt)\b", "bmi1"),
        (r"(bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx)\b", "bmi2"), (r"lzcnt\b", "abm"), (r"movbe\b", "movbe"),
        (r"popcnt\b", "popcnt"), (r"(crc32|pcmp[ei]str)", "sse4_2"), (r"pmulld|pblend|ptest|round[sp]", "sse4_1"),
        (r"pshufb|palignr|phadd", "ssse3"), (r"aes(enc|dec|imc|key)", "aes"), (r"cmpxchg16b", "cx16"),
    ),
    "riscv": (
        (r"v[a-z0-9.]+\s", "v"), (r"sh[123]add", "zba"), (r"(andn|orn|xnor|clz|ctz|cpop|rev8|orc\.b|minu?|maxu?|rolw?|"
         r"rorw?|roriw?|sext\.[bh]|zext\.h)\b", "zbb"), (r"clmul", "zbc"), (r"b(set|clr|inv|ext)i?\b", "zbs"),
        (r"f[a-z.]+\.h\b", "zfh"), (r"czero\.", "zicond"), (r"(aes|sha256|sha512)", "zkn"), (r"(sm3|sm4)", "zks"),
    ),
    "aarch64": (
        (r".*\bz\d+\.", "sve"), (r"(cas|swp|ld(add|clr|set|eor|smax|smin|umax|umin))(a|l|al)?[bh]?\b", "atomics"),
        (r"aes[ed]\b", "aes"), (r"sha1", "sha1"), (r"sha256", "sha2"), (r"crc32", "crc32"), (r"[su]dot\b", "asimddp"),
        (r"bf(dot|mmla|cvt)", "bf16"), (r"[su]s?mmla\b", "i8mm"),
    ),
}  # fmt: skip
_INSTRUCTION = re.compile(r"^ *[0-9a-f]+:\t(?:[0-9a-f]{2,8} )*\s*(.+)$")


def disassembly_hints(file: Path) -> dict[str, Any]:
    """Return the disassembler used and the features whose instructions occur, most frequent first.

    Raises: InputError (DisassemblerMissing, FileUnreadable, or the error of an invalid ELF file).
    """
    try:
        machine = inspect_elf(file.read_bytes()).machine
    except OSError as error:
        raise InputError(
            "FileUnreadable",
            Message("{name} cannot be read: {text}", name=str(file), text=error.strerror or str(error)),
        ) from error
    patterns = [(re.compile(pattern), feature) for pattern, feature in _PATTERNS.get(machine, ())]
    seen: Counter[str] = Counter()
    program, listing = _listing(file, machine)
    for line in listing.splitlines():
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        feature = next((feature for pattern, feature in patterns if pattern.match(found[1])), None)
        if feature is not None:
            seen[feature] += 1
    return {
        "by": program,
        "certain": False,
        "instructions": dict(sorted(seen.items(), key=lambda item: (-item[1], item[0]))),
    }


def _listing(file: Path, machine: str) -> tuple[str, str]:
    for name in (f"{_PREFIXES.get(machine, '')}objdump", "objdump", "llvm-objdump"):
        program = shutil.which(name)
        if program is None:
            continue
        try:
            done = subprocess.run(
                [program, "-d", "--no-show-raw-insn", "--", str(file.resolve())],
                capture_output=True,
                timeout=_SECONDS,
                check=False,
                env={"LC_ALL": "C"},
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and b"\t" in done.stdout:
            return name, done.stdout.decode("utf-8", "replace")
    raise InputError(
        "DisassemblerMissing",
        Message("no installed objdump can read {arch} programs", arch=machine),
        hint="install binutils for this architecture",
    )
