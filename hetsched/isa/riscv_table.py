"""Implications, conflicts and dependencies of RISC-V extension names, and their canonical order.

`rv64gcv` and a node that lists twenty names must be compared as sets, so both are closed under implication: (1) apply
`implies` and `conditional` (all names in `if` are present, the width matches) until nothing changes; (2) add each
bundle whose applicable parts are all present; repeat both steps. `v` is not a bundle.
Source: riscv-isa-manual, LLVM's RISCVISAInfo; table riscv_extensions.json.
Invariant: closure is idempotent. A larger set has a larger closure, with one exception: `c` is not added if `d` is
present without `zcd`, and on rv32 neither `c` nor `zce` is added if `f` is present without `zcf`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from hetsched.contracts.message import Message, joined

from .codes import refuse
from .tables import load

EXTENSIONS = load("riscv_extensions")
PROFILES = load("riscv_profiles")

G_LETTERS = ("i", "m", "a", "f", "d")
G_EXPANSION = frozenset((*G_LETTERS, "zicsr", "zifencei"))
BEFORE_2019_PART_OF_I = frozenset({"zicsr", "zifencei", "zicntr", "zihpm"})
SOFT = frozenset(name for name, row in EXTENSIONS.items() if row.get("soft") or row.get("hint"))

# Single letters in the manual's order; letters that only Linux orders (l k j t) are placed as in Linux. Groups of Z
# names are in the order of Linux and LLVM. The two orders differ in v and p.
_LETTER_ORDER = {letter: rank for rank, letter in enumerate("mafdqlcbkjtvph")}
_Z_GROUP_ORDER = {letter: rank for rank, letter in enumerate("imafdqlcbkjtpvh")}


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


VERSIONS = {name: _version(row["version"]) for name, row in EXTENSIONS.items() if "version" in row}


class ImplicationRule(NamedTuple):
    """`name` implies `part` if all names in `given` are present and the width is `xlen` (None: any width)."""

    name: str
    given: frozenset[str]
    xlen: int | None
    part: str


_CONDITIONS = tuple(
    ImplicationRule(name, frozenset(rule["if"]), rule.get("xlen"), rule["implies"])
    for name, row in EXTENSIONS.items()
    for rule in row.get("conditional", ())
)
BUNDLES = {name: frozenset(row["implies"]) for name, row in EXTENSIONS.items() if row.get("bundle")}


def _all_implied(name: str) -> frozenset[str]:
    found, waiting = {name}, [name]
    while waiting:
        for implied in EXTENSIONS[waiting.pop()]["implies"]:
            if implied not in found:
                found.add(implied)
                waiting.append(implied)
    return frozenset(found)


_IMPLIED = {name: _all_implied(name) for name, row in EXTENSIONS.items() if not row.get("shorthand")}


def implied(names: Iterable[str], xlen: int) -> set[str]:
    """Return `names` with all names they imply, except bundles."""
    closed: set[str] = set()
    for name in names:
        closed |= _IMPLIED.get(name) or {name}
    size = -1
    while size != len(closed):
        size = len(closed)
        for name, given, width, part in _CONDITIONS:
            if name in closed and given <= closed and width in (None, xlen):
                closed |= _IMPLIED[part]
    return closed


@lru_cache(maxsize=8192)
def closure(names: frozenset[str], xlen: int) -> frozenset[str]:
    """Return the closure of `names`; a base letter in `names` is kept."""
    closed = implied(names, xlen)
    size = -1
    while size != len(closed):
        size = len(closed)
        for bundle, parts in BUNDLES.items():
            if bundle not in closed and parts <= closed and _applying_parts(bundle, closed, xlen) <= closed:
                closed.add(bundle)
        if size != len(closed):
            closed = implied(closed, xlen)
    return frozenset(closed)


def _applying_parts(bundle: str, closed: set[str], xlen: int) -> set[str]:
    return {
        part for name, given, width, part in _CONDITIONS if name == bundle and given <= closed and width in (None, xlen)
    }


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
                Message("{name} exists only on rv{xlen}, this is rv{other}", name=name, xlen=row["xlen"], other=xlen),
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
