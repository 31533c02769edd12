"""JSON documents of instruction sets: of one parsed value, and of all names of the lattice.

`isa_document` is the output of `hetsched isa parse`. `lattice` lists every profile, level and feature with its implied
names, so that a client can offer a selection without knowing the implication rules. A client that needs the names
implied by a combination requests the `isa_document` of the combination.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from .arm import ARM
from .levelled import Family
from .requirement import parse
from .riscv_closure import closure
from .riscv_table import EXTENSIONS, PROFILES
from .tables import load
from .value import Isa
from .x86 import X86

Document = dict[str, Any]


def isa_document(isa: Isa) -> Document:
    """Return a parsed requirement or offer as a JSON document."""
    document: Document = {
        "input": isa.input,
        "arch": isa.arch,
        "xlen": isa.xlen,
        "base": isa.base,
        "extensions": sorted(isa.extensions),
        "canonical": isa.canonical,
    }
    if isa.versions:
        document["versions"] = {name: f"{major}.{minor}" for name, major, minor in isa.versions}
    if isa.untrusted:
        document["untrusted"] = list(isa.untrusted)
    return document


@cache
def lattice() -> Document:
    """Return the profiles or levels (`bases`) and the `features` of each family, each with its implied names."""
    return {"riscv": _riscv(), "x86": _levelled(X86, {}), "arm": _levelled(ARM, load("arm_features")["features"])}


def _riscv() -> Document:
    bases = ["rv64i", "rv64gc", *(name for name, row in PROFILES.items() if row["xlen"] == 64 and row.get("user"))]
    features = [
        {
            "name": name,
            "text": row.get("description", ""),
            "implies": sorted(closure(frozenset({name}), row.get("xlen", 64)) - {name}),
        }
        for name, row in EXTENSIONS.items()
        if not row.get("base") and not row.get("shorthand") and row.get("ratified") and row.get("xlen", 64) == 64
    ]
    return {"bases": [_base(name) for name in bases], "features": features}


def _levelled(family: Family, described: dict[str, Any]) -> Document:
    features = [
        {"name": name, "text": described.get(name, {}).get("description", ""), "implies": []}
        for name in sorted(set(family.features.values()))
    ]
    return {"bases": [_base(level) for level in family.levels], "features": features}


def _base(name: str) -> Document:
    return {"name": name, "extensions": sorted(parse(name).extensions)}
