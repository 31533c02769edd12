"""Every known instruction-set extension, level and profile; searchable by name or purpose."""

from __future__ import annotations

from functools import cache

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.isa import parse
from hetsched.isa.arm import ARM
from hetsched.isa.riscv_table import EXTENSIONS, PROFILES
from hetsched.isa.x86 import X86


class Extension(msgspec.Struct, frozen=True):
    """One name; `requirement` is the text of a request that needs it."""

    name: str
    family: str
    description: str
    requirement: str


@cache
def extensions() -> tuple[Extension, ...]:
    """Return all names that a request can use: profiles and levels first, then extensions by name."""
    found = [Extension(name, "RISC-V", "", name) for name in PROFILES]
    found += [Extension(level, "x86", "", level) for level in X86.levels]
    found += [Extension(level, "Arm", "", level) for level in ARM.levels]
    for name, row in sorted(EXTENSIONS.items()):
        written = f"rv64i{name}" if len(name) == 1 else f"rv64i_{name}"
        found.append(Extension(name, "RISC-V", row.get("description", ""), written))
    found += [Extension(name, "x86", "", f"x86-64-v1+{name}") for name in sorted(set(X86.features.values()))]
    found += [Extension(name, "Arm", "", f"armv8.0-a+{name}") for name in sorted(set(ARM.features.values()))]
    return tuple(one for one in found if _can_be_asked(one.requirement))


def _can_be_asked(requirement: str) -> bool:
    try:
        parse(requirement)
    except InputError:
        return False
    return True


def find(word: str, most: int) -> list[Extension]:
    """Return the extensions that match a word: the exact name first, then prefixes, then other matches."""
    wanted = word.lower()
    ranked = [(_rank(one, wanted), one) for one in extensions()]
    ranked = [pair for pair in ranked if pair[0] is not None]
    ranked.sort(key=lambda pair: pair[0] or 0)
    return [one for _rank, one in ranked[:most]]


def _rank(one: Extension, wanted: str) -> int | None:
    if one.name == wanted:
        return 0
    if one.name.startswith(wanted):
        return 1
    if wanted in one.name:
        return 2
    return 3 if len(wanted) > 2 and wanted in one.description.lower() else None
