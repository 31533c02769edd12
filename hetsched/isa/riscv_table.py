"""Table of RISC-V extension names: versions, conflicts, dependencies and the canonical order of names.

Source: riscv-isa-manual, LLVM's RISCVISAInfo; table riscv_extensions.json.
"""

from __future__ import annotations

from collections.abc import Iterable

from hetsched.contracts.message import Message, joined

from .codes import refuse
from .tables import load

EXTENSIONS = load("riscv_extensions")
PROFILES = load("riscv_profiles")

G_LETTERS = ("i", "m", "a", "f", "d")
G_EXPANSION = frozenset((*G_LETTERS, "zicsr", "zifencei"))
BEFORE_2019_PART_OF_I = frozenset({"zicsr", "zifencei", "zicntr", "zihpm"})
SOFT = frozenset(name for name, row in EXTENSIONS.items() if row.get("soft") or row.get("hint"))

# Single letters are in the order of the manual; l, k, j and t, which the manual does not order, are in the order of
# Linux. Z names are grouped in the order of Linux and LLVM, in which p comes before v.
_LETTER_ORDER = {letter: rank for rank, letter in enumerate("mafdqlcbkjtvph")}
_Z_GROUP_ORDER = {letter: rank for rank, letter in enumerate("imafdqlcbkjtpvh")}


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


VERSIONS = {name: _version(row["version"]) for name, row in EXTENSIONS.items() if "version" in row}


def canonical_text(prefix: str, names: Iterable[str]) -> str:
    """Format `names` after `prefix` (`rv64i` or a profile) in canonical order and without versions."""
    letters = sorted((name for name in names if len(name) == 1), key=_letter_key)
    longer = sorted((name for name in names if len(name) > 1), key=_longer_key)
    if prefix in PROFILES:
        return "_".join((prefix, *letters, *longer))
    return "_".join((prefix + "".join(letters), *longer))


def _letter_key(letter: str) -> tuple[int, str]:
    return _LETTER_ORDER.get(letter, len(_LETTER_ORDER)), letter


def _longer_key(name: str) -> tuple[int, int, str]:
    if name[0] == "z":
        return 0, _Z_GROUP_ORDER.get(name[1], len(_Z_GROUP_ORDER)), name
    return 1 + (name[0] == "x"), 0, name


def check_coherent(extensions: frozenset[str], xlen: int) -> None:
    """Reject a closed set that no machine can have.

    Such a set has conflicting names, a name of the other width, or a vector length (`zvl*b`) without vector names.
    """
    for name in sorted(extensions):
        row = EXTENSIONS.get(name)
        if row is None:
            continue
        if row.get("xlen", xlen) != xlen:
            refuse(
                "IsaWrongXlen",
                Message(
                    "{name} exists only on rv{xlen}, but the base is rv{other}", name=name, xlen=row["xlen"], other=xlen
                ),
            )
        for other in row.get("conflicts", ()):
            if other in extensions:
                refuse("IsaConflict", Message("{name} and {other} cannot be combined", name=name, other=other))
        needs = row.get("needs_any")
        if needs and not any(
            any(has.startswith(need[:-1]) for has in extensions) if need.endswith("*") else need in extensions
            for need in needs
        ):
            refuse(
                "IsaMissingDependency",
                Message("{name} also requires one of {names}", name=name, names=joined(", ", needs)),
            )
