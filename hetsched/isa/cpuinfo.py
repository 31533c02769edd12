"""Detect a machine's instruction set from the text of /proc/cpuinfo.

The cores of one machine may differ, and the kernel may move a program between them at any time, so only features that
every CPU has are used. On RISC-V this is the intersection of the `isa` lines (`hart isa` if there are none). A machine
whose `cpu-vector` is 0.7, or whose cores have mvendorid 0x5b7 with marchid 0, does not have `v`, even if its string
contains it. On x86 the features are read from the line `flags`, on Arm from the line `Features`; the level is looked up
in the family's table. A machine outside the lattice (32-bit x86 and Arm, POWER, s390x, LoongArch) is reported with its
features, and its ISA is unknown, not "none".
Source: Linux Documentation/arch/riscv/uabi.rst, arch/riscv/kernel/cpufeature.c.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hetsched.contracts.message import Message, joined

from .arm import ARM
from .codes import refuse
from .levelled import Family, levelled_isa
from .requirement import parse
from .riscv import riscv_isa
from .riscv_closure import closure, implied
from .riscv_table import BEFORE_2019_PART_OF_I
from .value import Isa
from .x86 import X86

_THEAD_VENDOR_ID = 0x5B7
# Limits for untrusted text: no machine has as many kinds of cores, and no architecture as many features.
_MAX_KINDS, _MAX_FEATURES = 256, 4096
Block = dict[str, str]


class CpuReport(msgspec.Struct, frozen=True):
    """A machine as described by its kernel.

    `isa` is None if the CPU has no place in the ISA lattice. `level` is None on RISC-V, which has no levels. `features`
    lists the names common to all CPUs, as the kernel prints them. `notes` lists the fields that differ between CPUs or
    could not be parsed, `rejected` only those that could not be parsed.
    """

    family: str
    xlen: int
    level: str | None
    features: tuple[str, ...]
    isa: Isa | None
    cpus: int
    notes: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()


def detect(cpuinfo_text: str) -> Isa:
    """Return the instruction set of the machine. Raises: InputError (IsaNotDetected)."""
    report = read_cpuinfo(cpuinfo_text)
    if report.isa is None:
        refuse(
            "IsaNotDetected",
            Message("{n}-bit {family} machines are not supported", n=report.xlen, family=report.family),
        )
    return report.isa


def read_cpuinfo(cpuinfo_text: str) -> CpuReport:
    """Return the machine that the text describes. Raises: InputError if the text contains no CPU."""
    blocks = _blocks(cpuinfo_text)
    cpus = sum("processor" in block or "cpu number" in block for block in blocks) or 1
    if harts := _values(blocks, "isa", prefix="rv") or _values(blocks, "hart isa", prefix="rv"):
        return _riscv(harts, blocks, cpus)
    if flags := _values(blocks, "flags"):
        features, notes = _common(flags)
        xlen = 64 if "lm" in features else 32
        return _levelled(X86, xlen, features, notes, cpus)
    if words := _values(blocks, "features"):
        features, notes = _common(words)
        family = _other_family(blocks)
        if family != "arm":
            return CpuReport(family, 64, None, tuple(sorted(features)), None, cpus, notes)
        return _levelled(ARM, 64 if "asimd" in features else 32, features, notes, cpus)
    if power := [value for value in _values(blocks, "cpu") if value.upper().startswith("POWER")]:
        level, _, rest = power[0].partition(",")
        features = frozenset(word for word in rest.split() if word != "supported")
        return CpuReport("power", 64, level.strip(), tuple(sorted(features)), None, cpus)
    refuse("IsaNotDetected", "the text describes no CPU: it has no isa, flags, Features or cpu line")


def _blocks(text: str) -> list[Block]:
    """Return the key-value lines of each CPU; a second `processor` line also starts a new block."""
    blocks: list[Block] = [{}]
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        name = key.strip().lower()
        if not colon:
            if not name:
                blocks.append({})
            continue
        if name in blocks[-1] and name == "processor":
            blocks.append({})
        blocks[-1].setdefault(name, value.strip())
    return [block for block in blocks if block]


def _values(blocks: Iterable[Block], key: str, *, prefix: str = "") -> list[str]:
    return [block[key] for block in blocks if block.get(key) and block[key].lower().startswith(prefix)]


def _distinct(lines: list[str]) -> list[str]:
    distinct = list(dict.fromkeys(lines))
    if len(distinct) > _MAX_KINDS:
        refuse(
            "IsaNotDetected",
            Message("the text lists {n} kinds of cores; the maximum is {m}", n=len(distinct), m=_MAX_KINDS),
        )
    return distinct


def _common(lines: list[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    sets = [frozenset(line.split(None, _MAX_FEATURES)) for line in _distinct(lines)]
    if any(len(words) > _MAX_FEATURES for words in sets):
        refuse("IsaNotDetected", Message("a core has more than {n} features", n=_MAX_FEATURES))
    common = frozenset.intersection(*sets)
    differing = frozenset.union(*sets) - common
    return common, (f"not on every CPU: {' '.join(sorted(differing))}",) if differing else ()


def _levelled(family: Family, xlen: int, features: frozenset[str], notes: tuple[str, ...], cpus: int) -> CpuReport:
    level = family.highest_level(features) if xlen == 64 else None
    shown = tuple(sorted(features))
    if level is None:
        return CpuReport(family.arch, xlen, None, shown, None, cpus, notes)
    isa = levelled_isa(family, level, "cpuinfo", features, explicit=features)
    return CpuReport(family.arch, xlen, level, shown, msgspec.structs.replace(isa, input=isa.canonical), cpus, notes)


def _other_family(blocks: Iterable[Block]) -> str:
    keys = {key for block in blocks for key in block}
    if "loongarch" in " ".join(_values(blocks, "isa")).lower():
        return "loongarch"
    return "s390" if {"vendor_id", "bogomips per cpu"} & keys and "cpu implementer" not in keys else "arm"


def _riscv(strings: list[str], blocks: list[Block], cpus: int) -> CpuReport:
    distinct = _distinct(strings)
    harts = [parse(string, source="cpuinfo") for string in distinct]
    if len({(hart.xlen, hart.base) for hart in harts}) > 1:
        refuse("IsaNotDetected", Message("the harts have different bases: {names}", names=joined(", ", distinct)))
    isa = harts[0] if len(harts) == 1 else _intersect(harts)
    differing, rejected = [], []
    if len(harts) > 1:
        some = frozenset.union(*(hart.extensions for hart in harts)) - isa.extensions
        differing.append(f"not on every CPU: {' '.join(sorted(some))}")
    if _has_draft_vector(blocks) and any(_needs_vector(name) for name in isa.explicit):
        rejected.append("v is rejected: the cores have the draft vector extension 0.7")
        isa = _without_vector(isa)
    if isa.untrusted:
        rejected.append(f"draft or unreadable names are rejected: {' '.join(isa.untrusted)}")
    features = tuple(sorted(isa.explicit - {isa.base}))
    return CpuReport("riscv", isa.xlen, None, features, isa, cpus, (*differing, *rejected), tuple(rejected))


def _intersect(harts: list[Isa]) -> Isa:
    common = frozenset.intersection(*(hart.extensions for hart in harts))
    first = harts[0]
    named = frozenset.union(*(hart.explicit for hart in harts)) & common
    # A name that all harts have may be implied by a different name on each hart, so `named` does not imply it. Such
    # names are added.
    amended = named | BEFORE_2019_PART_OF_I if first.base == "i" else named
    explicit = named | (common - closure(amended, first.xlen)) | {first.base}
    versions = frozenset.intersection(*(frozenset(hart.versions) for hart in harts))
    untrusted = frozenset.union(*(frozenset(hart.untrusted) for hart in harts))
    return riscv_isa(
        " & ".join(hart.input for hart in harts),
        "cpuinfo",
        first.xlen,
        first.base,
        explicit,
        versions=tuple(sorted(versions)),
        untrusted=untrusted,
    )


def _has_draft_vector(blocks: Iterable[Block]) -> bool:
    return any(
        block.get("cpu-vector", "").startswith("0.7")
        or (_number(block.get("mvendorid")) == _THEAD_VENDOR_ID and _number(block.get("marchid")) == 0)
        for block in blocks
    )


def _number(text: str | None) -> int | None:
    try:
        return int(text, 0) if text else None
    except ValueError:
        return None


def _needs_vector(name: str) -> bool:
    return name.startswith("zvl") or "zve32x" in implied((name,), 64)


def _without_vector(isa: Isa) -> Isa:
    dropped = frozenset(name for name in isa.explicit if _needs_vector(name))
    return riscv_isa(
        isa.input,
        isa.source,
        isa.xlen,
        isa.base,
        isa.explicit - dropped,
        versions=isa.versions,
        untrusted={*isa.untrusted, *dropped},
    )
