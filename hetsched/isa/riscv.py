"""RISC-V ISA strings: `RV64IMFDV`, `rv64gc_zba_zbb`, `rva22u64_v`, and the output of kernels and device trees.

The same machine is written in many ways, by people (with typing errors) and by kernels. Labels are parsed strictly,
each error has a code; strings of kernels, device trees and compilers are parsed leniently: unreliable names are listed
as `untrusted`, never guessed. `+` separates items like `_`.
Source: riscv-isa-manual "ISA Extension Naming Conventions"; Linux arch/riscv/kernel/cpufeature.c for the old marks.

Kernels before 5.18 printed the privilege modes as letters (`rv64imafdcvsu`, `...bsux`). Such a string is of the draft
era, in which `b` and `v` meant other instructions: they count only if a long name confirms them (for v any ratified
vector name; for b its parts zba, zbb and zbs, which imply the bundle).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from hetsched.contracts.message import Message, joined

from .codes import refuse
from .riscv_items import Item, read_items
from .riscv_table import (
    BEFORE_2019_PART_OF_I,
    EXTENSIONS,
    G_EXPANSION,
    G_LETTERS,
    PROFILES,
    SOFT,
    VERSIONS,
    canonical_text,
    check_coherent,
    closure,
    implied,
)
from .value import AMENDED_SOURCES, STRICT_SOURCES, Isa, Source, Version

_OTHER_BASE = {"i": ("e",), "e": ("i", "g")}
_HEAD = re.compile(r"rv([0-9]+)(.*)")
_PROFILE = re.compile(r"(rv[a-z](?:[0-9]+[a-z][0-9]+)?)(.*)")
_BASE = re.compile(r"([ieg])(?:([0-9]+)(?:p([0-9]+))?)?(.*)")


class _Stated(NamedTuple):
    explicit: frozenset[str]
    versions: tuple[Version, ...]
    untrusted: tuple[str, ...]


def parse_riscv(original: str, text: str, source: Source) -> Isa:
    """Parse lower-case `text`, trimmed and in ASCII. Raises: InputError."""
    strict = source in STRICT_SOURCES
    text = text.replace("+", "_")
    if found := _PROFILE.fullmatch(text):
        return _parse_profile(original, found[1], found[2], source)
    head = _HEAD.fullmatch(text)
    if head is None or head[1] not in ("32", "64", "128"):
        refuse(
            "IsaUnknownArchitecture",
            Message("{text} is no RISC-V string: rv32 or rv64 must come first", text=repr(original)),
        )
    if head[1] == "128":
        refuse("IsaUnratified", "rv128 is not a ratified base")
    rest = head[2] if strict else head[2].lstrip("_")
    base = _BASE.fullmatch(rest)
    if base is None:
        refuse("IsaMissingBase", Message("rv{xlen} must be followed by the base letter i, e or g", xlen=head[1]))
    if strict and base[2] and (base[1] == "g" or base[4].startswith("p")):
        refuse(
            "IsaBadVersion", Message("the version of {text} is not written like 2p1 or 2, or it has none", text=base[1])
        )
    first = Item(base[1], (int(base[2]), int(base[3] or 0)) if base[2] else None)
    items, legacy, unreadable = read_items(base[4], strict=strict)
    letter = "e" if base[1] == "e" else "i"
    stated = _state([first, *items], letter, frozenset(), strict=strict)
    untrusted = {*stated.untrusted, *unreadable}
    explicit = stated.explicit
    if legacy:
        drafts = {"b"} if _confirms_vector(explicit - {"v"}) else {"b", "v"}
        untrusted |= explicit & drafts
        explicit -= drafts
    return riscv_isa(
        original,
        source,
        int(head[1]),
        letter,
        explicit,
        versions=stated.versions,
        untrusted=untrusted,
    )


def _parse_profile(original: str, name: str, rest: str, source: Source) -> Isa:
    profile = PROFILES.get(name)
    if profile is None:
        refuse(
            "IsaUnknownProfile",
            Message("{text} is no ratified profile", text=name),
            hint=Message("known: {text}", text=joined(", ", PROFILES)),
        )
    strict = source in STRICT_SOURCES
    if rest and not rest.startswith("_"):
        refuse(
            "IsaUnknownProfile",
            Message("{name} is no profile", name=name + rest),
            hint=Message("additions follow after a _: {name}", name=f"{name}_v"),
        )
    items, _, unreadable = read_items(rest, strict=strict)
    mandatory = frozenset(profile["mandatory"]) | {profile["base"]}
    stated = _state(items, profile["base"], mandatory, strict=strict)
    return riscv_isa(
        original,
        source,
        profile["xlen"],
        profile["base"],
        stated.explicit | mandatory,
        profile=name,
        versions=stated.versions,
        untrusted={*stated.untrusted, *unreadable},
    )


def _state(items: Iterable[Item], base: str, present: frozenset[str], *, strict: bool) -> _Stated:
    """Collect the items: refuse repetitions (strict) or set drafts aside (lenient)."""
    stated, explicit = set(present), set(present)
    versions: list[Version] = []
    untrusted: set[str] = set()
    for name, version in items:
        if name in _OTHER_BASE[base]:
            if strict:
                refuse("IsaConflict", Message("the bases {base} and {name} exclude each other", base=base, name=name))
            continue
        parts = G_LETTERS if name == "g" else (name,)
        for part in parts:
            if part not in stated:
                stated.add(part)
            elif strict:
                twice = Message("{part} (part of {name})", part=part, name=name) if part != name else part
                said = Message("{text} is stated twice", text=twice)
                refuse("IsaRepeatedItem", said, hint="g and a profile name their parts")
        drafted = version is not None and name in VERSIONS and version[0] != VERSIONS[name][0]
        if drafted and not strict and name != base:
            untrusted.add(name)
            continue
        explicit.update(G_EXPANSION if name == "g" else parts)
        if version is not None and all(name != known for known, _, _ in versions):
            versions.append((name, *version))
    return _Stated(frozenset(explicit), tuple(sorted(versions)), tuple(untrusted))


def _confirms_vector(names: Iterable[str]) -> bool:
    return any("zve32x" in implied((name,), 64) or name.startswith("zvl") for name in names if name in EXTENSIONS)


def riscv_isa(
    original: str,
    source: Source,
    xlen: int,
    base: str,
    explicit: frozenset[str],
    *,
    profile: str | None = None,
    versions: tuple[Version, ...] = (),
    untrusted: Iterable[str] = (),
) -> Isa:
    """Build the value from its explicit names, base letter and profile's list included. Raises: InputError."""
    offered = explicit | BEFORE_2019_PART_OF_I if base == "i" and source in AMENDED_SOURCES else explicit
    extensions = closure(offered - {base}, xlen)
    if source in STRICT_SOURCES:
        check_coherent(extensions, xlen)
    soft: frozenset[str] = frozenset()
    needed = extensions
    if profile is None:
        canonical = canonical_text(f"rv{xlen}{base}", explicit - {base})
    else:
        mandatory = frozenset(PROFILES[profile]["mandatory"])
        additions = explicit - mandatory - {base}
        canonical = canonical_text(profile, additions)
        soft = (closure(mandatory, xlen) & SOFT) - closure(additions, xlen)
        # The set without the soft names: a bundle that only they complete is then not required either.
        asked = implied(offered - {base}, xlen)
        named_by_parts = {name for name in extensions - asked if soft & implied((name,), xlen)}
        needed = extensions - soft - named_by_parts
    return Isa(
        input=original,
        source=source,
        arch="riscv",
        xlen=xlen,
        base=base,
        explicit=explicit,
        extensions=extensions,
        canonical=canonical,
        needed=needed,
        soft=soft,
        profile=profile,
        versions=tuple(version for version in versions if version[0] in explicit),
        untrusted=tuple(sorted(set(untrusted) - extensions)),
    )
