"""64-bit Arm: architecture levels armv8.0-a to armv9.4-a and the HWCAP words that Linux prints.

A machine has a level if it reports every HWCAP word of this level and of the levels that this level extends. Words that
kernels or hypervisors hide (`ssbs`, `bti`, `dit`) are not part of a level. armv9.0 includes armv8.5, but neither
armv8.6 nor armv9.0 includes the other; a machine that has levels of both lines gets its armv9 level. No word implies
another word, because a machine reports every word it has.
Source: Linux elf_hwcaps.rst, Arm ARM; arm_features.json.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from .levelled import Family
from .tables import load


def _family() -> Family:
    table, names = load("arm_features"), load("arm_hwcaps")
    levels: dict[str, frozenset[str]] = {}
    for row in table["levels"]:
        below = (levels[name] for name in row.get("extends", ()))
        levels[row["name"]] = frozenset(row["adds"]).union(*below)
    spellings = table["oci_variants"] | {level: level for level in levels}
    spellings |= {"aarch64": "armv8.0-a", "armv8-a": "armv8.0-a", "armv9-a": "armv9.0-a"}
    return Family(arch="arm", levels=levels, spellings=spellings, features=_features(table["features"], names))


def _features(table: dict[str, dict[str, str]], names: dict[str, Any]) -> dict[str, str]:
    """Map each accepted spelling (the word, its aliases and unambiguous FEAT_ names: `feat_sve2`) to its HWCAP word."""
    architects = {word: row["feature"].lower() for word, row in table.items()}
    uses = Counter(architects.values())
    spelled = {
        name: word
        for word, name in architects.items()
        if name.startswith("feat_") and (uses[name] == 1 or name == f"feat_{word}")
    }
    short: dict[str, str] = names["aliases"]
    return spelled | short | {word: word for word in (*table, *names["more"])}


ARM = _family()
