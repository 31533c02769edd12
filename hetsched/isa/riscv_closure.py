"""Closure of RISC-V extension names under implication.

`rv64gcv` and a node that lists twenty names must be compared as sets, so both are closed under implication. Two steps
are repeated until nothing changes: (1) add the names that the table lists under `implies`, and those under
`conditional` if all names in `if` are present and the width matches; (2) add each bundle of which all parts for this
width are present. `v` is not a bundle.
Source: riscv-isa-manual, LLVM's RISCVISAInfo; table riscv_extensions.json.
Invariant: closure is idempotent. A larger set has a larger closure, with one exception: `c` is not added if `d` is
present without `zcd`, and on rv32 neither `c` nor `zce` is added if `f` is present without `zcf`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from .riscv_table import EXTENSIONS


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
