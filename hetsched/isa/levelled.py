"""Architectures whose instruction sets consist of a level and additional features: x86-64 and Arm.

`X86`, `amd64`, `x86_64_v3`, `x86-64-v3+avx512f` and, in label values, `x86-64-v3_avx512f` have the same grammar: the
longest spelling of a level at the start of the text, followed by features. If the text contains `+`, the parts after
the first `+` are separated by `+` only. The part before the first `+`, or the whole text without `+`, is split at `_`
into the longest known names (`avx512_vnni` is one feature). The canonical text is the highest level whose features are
all present, followed by the other features, sorted.
Invariant: two known names joined by `_` can be split in only one way (a test tries every pair).
"""

from __future__ import annotations

from difflib import get_close_matches

import msgspec

from hetsched.contracts.message import Message, joined

from .codes import refuse
from .value import STRICT_SOURCES, Arch, Isa, Source


class Family(msgspec.Struct, frozen=True):
    """One architecture. `levels` is ascending; `spellings` and `features` map accepted words to canonical names."""

    arch: Arch
    levels: dict[str, frozenset[str]]
    spellings: dict[str, str]
    features: dict[str, str]

    def highest_level(self, features: frozenset[str]) -> str | None:
        """Return the highest level whose features are all present, or None if there is none."""
        for level in reversed(self.levels):
            if self.levels[level] <= features:
                return level
        return None


def parse_levelled(family: Family, original: str, text: str, source: Source) -> Isa:
    """Parse `text`, which must be lower-case ASCII without surrounding spaces. Raises: InputError."""
    strict = source in STRICT_SOURCES
    first, *plus_parts = text.split("+")
    level, words = _cut_head(family, first.split("_"))
    stated = _cut_features(family, words, strict=strict)
    stated += [family.features.get(part) or _unknown(family, part, strict=strict) for part in plus_parts]
    if strict and len(set(stated)) != len(stated):
        twice = next(name for name in stated if stated.count(name) > 1)
        refuse("IsaRepeatedItem", Message("{text} occurs twice", text=twice))
    named = frozenset(stated) - {""}
    return levelled_isa(family, original, source, family.levels[level] | named, explicit=named)


def levelled_isa(
    family: Family, original: str, source: Source, extensions: frozenset[str], *, explicit: frozenset[str]
) -> Isa:
    """Build an Isa from its features. Raises: InputError if the features do not include the lowest level."""
    level = family.highest_level(extensions)
    if level is None:
        refuse(
            "IsaUnknownLevel",
            Message("the features of {text} do not form a 64-bit {arch} level", text=repr(original), arch=family.arch),
        )
    return Isa(
        input=original,
        source=source,
        arch=family.arch,
        xlen=64,
        base=level,
        explicit=explicit,
        extensions=extensions,
        canonical="+".join((level, *sorted(extensions - family.levels[level]))),
        needed=extensions,
    )


def _cut_head(family: Family, words: list[str]) -> tuple[str, list[str]]:
    for count in range(len(words), 0, -1):
        level = family.spellings.get("_".join(words[:count]))
        if level is not None:
            return level, words[count:]
    known = joined(", ", family.levels)
    refuse(
        "IsaUnknownLevel",
        Message("{text} is not a known level of {arch}", text=repr("_".join(words)), arch=family.arch),
        hint=Message("known: {text}", text=known),
    )


def _cut_features(family: Family, words: list[str], *, strict: bool) -> list[str]:
    names: list[str] = []
    at = 0
    while at < len(words):
        for stop in range(len(words), at, -1):
            name = family.features.get("_".join(words[at:stop]))
            if name is not None:
                names.append(name)
                at = stop
                break
        else:
            names.append(_unknown(family, words[at], strict=strict))
            at += 1
    return names


def _unknown(family: Family, name: str, *, strict: bool) -> str:
    """Reject an unknown feature (strict), or keep it as an opaque name (lenient)."""
    if not strict:
        return name
    if not name:
        refuse("IsaEmptyItem", "an item is empty: two separators in a row, or one at the end")
    near = get_close_matches(name, family.features, n=1, cutoff=0.75)
    refuse(
        "IsaUnknownExtension",
        Message("{text} is not a known feature of {arch}", text=name, arch=family.arch),
        hint=Message("did you mean {name}?", name=family.features[near[0]]) if near else "",
    )
