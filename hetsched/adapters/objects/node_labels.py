"""Labels and annotations that state a node's instruction sets.

A label value has at most 63 characters and no `+`; a real RISC-V string has more than 200. Label `ARCH` contains the
short form that ISAMatch reads (`RV64IMAFDCV`, `X86`, `ARM64`) and `hetsched.io/isa-level` the level or the highest
profile. There is one label `hetsched.io/riscv.<extension>` for each RISC-V extension with a longer name. Annotation
`hetsched.io/isa` contains the complete string, which is authoritative. Label `QEMU` is the short form of one
instruction set that emulation or a cross toolchain adds; annotations list all of these instruction sets. If the string
is a lower bound, this is marked by annotation `hetsched.io/isa-bound`; readers then skip label `ARCH` in favour of the
source that it was derived from.
Source: Kubernetes documentation, "Labels and Selectors"; the ISAMatch article, labels ARCH and QEMU.
Invariant: `node_isa.isa_report` reads the same instruction sets back from these labels and annotations.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from hetsched import isa
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.node_report import IsaReport

from . import keys

_LETTERS = "MAFDQCBVPH"
_PROFILES = ("rva23u64", "rva22u64", "rva20u64", "rvb23u64")
_SHORT = {"x86": "X86", "arm": "ARM64"}
_COARSE = {"amd64": "X86", "arm64": "ARM64", "riscv64": "RV64I"}
_MOST_EXTENSIONS = 150
_NAME = re.compile(r"[a-z0-9]([-a-z0-9._]{0,54}[a-z0-9])?")
_LEVEL = re.compile(r"x86-64-v[1-4]|armv[89]\.[0-9]-a")
_MOST_EMULATED = 50

Texts = dict[str, str]


class LabelGroup(msgspec.Struct, frozen=True):
    """Labels and annotations of one group: if another manager sets one of these keys, none of the group is written."""

    labels: Texts = {}
    annotations: Texts = {}


def native_labels(offered: IsaReport) -> LabelGroup:
    """Return the labels of a machine's native ISA, or an empty group if it is unknown."""
    found = _parsed(offered.native)
    if found is None or offered.native is None:
        return LabelGroup()
    labels = {keys.ARCH: short_form(found)}
    level = _level(found)
    if level:
        labels[keys.ISA_LEVEL] = level
    annotations = {keys.ISA: offered.native}
    if not offered.complete:
        annotations[keys.ISA_BOUND] = keys.LOWER
        if offered.absent:
            annotations[keys.ISA_ABSENT] = ",".join(offered.absent)
    if found.arch == "riscv":
        named = sorted(name for name in found.explicit if len(name) > 1 and _NAME.fullmatch(name))
        labels |= {f"{keys.RISCV_EXTENSION}{name}": "true" for name in named[:_MOST_EXTENSIONS]}
    return LabelGroup(labels, annotations)


def coarse_labels(kubernetes_arch: str) -> LabelGroup:
    """Return the labels of a node of which only the architecture is known, marked as a lower bound."""
    known = _COARSE.get(kubernetes_arch)
    return LabelGroup({keys.ARCH: known}, {keys.ISA_BOUND: keys.LOWER}) if known else LabelGroup()


def emulated_labels(offered: IsaReport) -> LabelGroup:
    """Return the labels of a node's emulated and cross-compiled ISAs, or an empty group if there are none."""
    annotations = {
        key: ",".join(sets[:_MOST_EMULATED])
        for key, sets in ((keys.EMULATED_ISA, offered.emulated), (keys.CROSS_ISA, offered.cross))
        if sets
    }
    # A label has a single value, so one ISA must be chosen: a RISC-V ISA, the usual target of emulation, and of several
    # the one with the most extensions.
    added = [found for found in map(_parsed, (*offered.emulated, *offered.cross)) if found is not None]
    added.sort(key=lambda found: (found.arch != "riscv", -len(found.extensions), found.canonical))
    return LabelGroup({keys.QEMU: short_form(added[0])} if added else {}, annotations)


def short_form(found: isa.Isa) -> str:
    """Return the short form of an ISA that ISAMatch reads from labels, such as RV64IMAFDC, X86 or ARM64."""
    if found.arch != "riscv":
        return _SHORT[found.arch] if found.xlen == 64 or found.arch == "x86" else "ARM"
    letters = "".join(letter for letter in _LETTERS if letter.lower() in found.extensions)
    return f"RV{found.xlen}{found.base.upper()}{letters}"


def is_short_for(value: str, offers: tuple[str, ...]) -> bool:
    """Return whether a label value is only the short form of one of these ISAs."""
    return any(found is not None and short_form(found) == value for found in map(_parsed, offers))


def _level(found: isa.Isa) -> str:
    if found.arch != "riscv":
        return found.base if _LEVEL.fullmatch(found.base) else ""
    for name in _PROFILES if found.xlen == 64 else ():
        if isa.match(isa.parse(name), found).satisfied:
            return name
    return ""


@lru_cache(maxsize=4096)
def _parsed(text: str | None) -> isa.Isa | None:
    if text is None:
        return None
    try:
        return isa.parse(text, source="node-label")
    except InputError:
        return None
