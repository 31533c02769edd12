"""RISC-V ISA strings: `RV64IMFDV`, `rv64gc_zba_zbb`, `rva22u64_v`, and the output of kernels and device trees.

Users (with typing errors) and kernels write the ISA of the same machine in many ways. Labels are parsed strictly, and
each error has a code. Strings of kernels, device trees and compilers are parsed leniently: unreliable names are not
interpreted but listed as `untrusted`. Both `+` and `_` separate items.
Source: riscv-isa-manual "ISA Extension Naming Conventions"; Linux arch/riscv/kernel/cpufeature.c (old privilege marks).

Kernels before 5.18 printed the privilege modes as letters (`rv64imafdcvsu`, `...bsux`). When such strings were written,
`b` and `v` denoted drafts with other instructions. These letters are accepted only if a long name confirms them: for v
any ratified vector name, for b its parts zba, zbb and zbs, which imply the bundle.

The items after the base letter are names with optional versions. A single letter is an item; `s`, `x` and `z` start a
name that ends at the next `_`. A version is `2p1` or `2`. Except sv32, sv39, sv48 and sv57, names never end in a digit
or in a digit followed by p, so a number at the end is a version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from hetsched.contracts.message import Message, joined

from .codes import refuse
from .riscv_closure import closure, implied
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
)
from .value import AMENDED_SOURCES, STRICT_SOURCES, Isa, Source, Version

_NUMBER = re.compile(r"([0-9]+)(?:p([0-9]+))?")
_LONG_NAME = re.compile(r"(sv(?:32|39|48|57)|[sxz][a-z0-9]*?)(?:([0-9]+)(?:p([0-9]+))?)?")
_DIGIT_P = re.compile(r"[0-9]p$")


class Item(NamedTuple):
    name: str
    version: tuple[int, int] | None


class Items(NamedTuple):
    """Parsed items. `legacy` is set if an old privilege mark was dropped; `unreadable` contains skipped words."""

    items: list[Item]
    legacy: bool
    unreadable: set[str]


def read_items(body: str, *, strict: bool) -> Items:
    """Split `body` into items. Raises: InputError (only if `strict`)."""
    items: list[Item] = []
    unreadable: set[str] = set()
    legacy = False
    at, end = 0, len(body)
    while at < end:
        letter = body[at]
        if letter == "_":
            if strict and (at + 1 == end or body[at + 1] == "_"):
                refuse("IsaEmptyItem", "an item is empty: two separators in a row, or one at the end")
            at += 1
        elif not strict and letter == "s" and body[at + 1 : at + 2] == "u" and body[at - 1 : at] != "_":
            legacy = True
            at += 2
        elif letter in "sxz":
            stop = body.find("_", at)
            word = body[at : stop if stop >= 0 else end]
            at += len(word)
            if not strict and word in ("s", "x"):
                continue
            item = _read_long(word, strict=strict)
            if item is None:
                unreadable.add(word)
            else:
                items.append(item)
        elif "a" <= letter <= "z":
            at += 1
            version = None
            if number := _NUMBER.match(body, at):
                version = (int(number[1]), int(number[2] or 0))
                at = number.end()
                if strict and body[at : at + 1] == "p":
                    refuse("IsaBadVersion", Message("the version of {text} is not of the form 2 or 2p1", text=letter))
            if letter == "u" and not strict:
                legacy = True
                continue
            if strict:
                _check_known(letter)
            items.append(Item(letter, version))
        elif strict:
            refuse("IsaBadCharacter", Message("{text} is not valid in an ISA string", text=repr(letter)))
        else:
            at += 1
    return Items(items, legacy, unreadable)


def _read_long(word: str, *, strict: bool) -> Item | None:
    """Parse a word as a long name with an optional version; return None for a word that is skipped (lenient only)."""
    found = _LONG_NAME.fullmatch(word)
    if found is None:
        if strict:
            bad = next(letter for letter in word if not letter.isalnum() or not letter.isascii())
            refuse(
                "IsaBadCharacter",
                Message("{text} in {text_b} is not valid in an ISA string", text=repr(bad), text_b=repr(word)),
            )
        return None
    name = found[1]
    if _DIGIT_P.search(name):
        if strict:
            refuse("IsaBadVersion", Message("the version of {text} is not of the form 2 or 2p1", text=repr(word)))
        return None
    if strict:
        _check_known(name)
    elif len(name) == 1:
        return None
    return Item(name, (int(found[2]), int(found[3] or 0)) if found[2] else None)


def _check_known(name: str) -> None:
    if name[0] == "x" and len(name) > 1:
        return
    row = EXTENSIONS.get(name)
    if row is None:
        hint = ""
        if len(name) == 1:
            hint = "multi-letter extensions begin with z, s or x and follow _" if name not in "sxz" else ""
        else:
            from difflib import get_close_matches

            near = get_close_matches(name, EXTENSIONS, n=1, cutoff=0.75)
            hint = Message("did you mean {name}?", name=near[0]) if near else ""
        refuse("IsaUnknownExtension", Message("{text} is not a RISC-V extension", text=name), hint=hint)
    if not row["ratified"]:
        refuse("IsaUnratified", Message("{name} is a draft (version {version})", name=name, version=row["version"]))


_OTHER_BASE = {"i": ("e",), "e": ("i", "g")}
_HEAD = re.compile(r"rv([0-9]+)(.*)")
_PROFILE = re.compile(r"(rv[a-z](?:[0-9]+[a-z][0-9]+)?)(.*)")
_BASE = re.compile(r"([ieg])(?:([0-9]+)(?:p([0-9]+))?)?(.*)")


class _StatedExtensions(NamedTuple):
    explicit: frozenset[str]
    versions: tuple[Version, ...]
    untrusted: tuple[str, ...]


def parse_riscv(original: str, text: str, source: Source) -> Isa:
    """Parse `text`, which must be lower-case ASCII without surrounding spaces. Raises: InputError."""
    strict = source in STRICT_SOURCES
    text = text.replace("+", "_")
    if found := _PROFILE.fullmatch(text):
        return _parse_profile(original, found[1], found[2], source)
    head = _HEAD.fullmatch(text)
    if head is None or head[1] not in ("32", "64", "128"):
        refuse(
            "IsaUnknownArchitecture",
            Message("{text} is not a RISC-V ISA string: it must begin with rv32 or rv64", text=repr(original)),
        )
    if head[1] == "128":
        refuse("IsaUnratified", "rv128 is not a ratified base")
    rest = head[2] if strict else head[2].lstrip("_")
    base = _BASE.fullmatch(rest)
    if base is None:
        refuse("IsaMissingBase", Message("rv{xlen} must be followed by the base letter i, e or g", xlen=head[1]))
    if strict and base[2] and (base[1] == "g" or base[4].startswith("p")):
        refuse(
            "IsaBadVersion",
            Message("the version of {text} is not of the form 2 or 2p1, or {text} cannot have a version", text=base[1]),
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
            Message("{text} is not a ratified profile", text=name),
            hint=Message("known: {text}", text=joined(", ", PROFILES)),
        )
    strict = source in STRICT_SOURCES
    if rest and not rest.startswith("_"):
        refuse(
            "IsaUnknownProfile",
            Message("{name} is not a RISC-V profile", name=name + rest),
            hint=Message("write additional extensions after _: {name}", name=f"{name}_v"),
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


def _state(items: Iterable[Item], base: str, present: frozenset[str], *, strict: bool) -> _StatedExtensions:
    """Collect the items. Strict parsing rejects repeated items; lenient parsing moves drafts to `untrusted`."""
    stated, explicit = set(present), set(present)
    versions: list[Version] = []
    untrusted: set[str] = set()
    for name, version in items:
        if name in _OTHER_BASE[base]:
            if strict:
                refuse("IsaConflict", Message("the bases {base} and {name} cannot be combined", base=base, name=name))
            continue
        parts = G_LETTERS if name == "g" else (name,)
        for part in parts:
            if part not in stated:
                stated.add(part)
            elif strict:
                twice = Message("{part} (part of {name})", part=part, name=name) if part != name else part
                message = Message("{text} occurs twice", text=twice)
                refuse("IsaRepeatedItem", message, hint="g and profiles already include their extensions")
        drafted = version is not None and name in VERSIONS and version[0] != VERSIONS[name][0]
        if drafted and not strict and name != base:
            untrusted.add(name)
            continue
        explicit.update(G_EXPANSION if name == "g" else parts)
        if version is not None and all(name != known for known, _, _ in versions):
            versions.append((name, *version))
    return _StatedExtensions(frozenset(explicit), tuple(sorted(versions)), tuple(untrusted))


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
    """Build an Isa; `explicit` includes the base letter and the names of the profile. Raises: InputError."""
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
        # A requirement includes neither soft names nor bundles that only soft names complete.
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
