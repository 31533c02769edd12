"""x86-64: micro-architecture levels v1 to v4 and the feature flags that Linux prints.

Levels are cumulative: a machine with a missing flag has only the levels below, and a machine without `lm` has no level.
Flags have their Linux names (`pni` is SSE3, `abm` is LZCNT); the spellings of NFD and of the psABI, and flags without
their underscores, are also accepted. No flag implies another flag: a machine reports every flag it has.
Source: x86-64 psABI; x86_levels.json.
"""

from __future__ import annotations

from .levelled import Family
from .tables import load


def _family() -> Family:
    table, names = load("x86_levels"), load("x86_flags")
    flags: list[str] = names["flags"]
    levels: dict[str, frozenset[str]] = {}
    below: frozenset[str] = frozenset()
    for name, row in table["levels"].items():
        below = levels[name] = below | frozenset(row["adds"])
    return Family(
        arch="x86",
        levels=levels,
        spellings=table["aliases"] | {level: level for level in levels} | {"x86": "x86-64-v1"},
        features=names["aliases"] | {flag.replace("_", ""): flag for flag in flags} | {flag: flag for flag in flags},
    )


X86 = _family()
