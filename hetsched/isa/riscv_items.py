"""The items of a RISC-V string after its base letter: names with optional versions.

A single letter is an item; `s`, `x` and `z` start a name that ends at the next `_`. A version is `2p1` or `2`; names
end in neither a digit nor digit + p, except sv32, sv39, sv48 and sv57, so a trailing number is a version.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from hetsched.contracts.message import Message

from .codes import refuse
from .riscv_table import EXTENSIONS

_NUMBER = re.compile(r"([0-9]+)(?:p([0-9]+))?")
_LONG_NAME = re.compile(r"(sv(?:32|39|48|57)|[sxz][a-z0-9]*?)(?:([0-9]+)(?:p([0-9]+))?)?")
_DIGIT_P = re.compile(r"[0-9]p$")


class Item(NamedTuple):
    name: str
    version: tuple[int, int] | None


class Items(NamedTuple):
    """Parsed items. `legacy`: an old privilege mark was found and dropped. `unreadable`: skipped words."""

    items: list[Item]
    legacy: bool
    unreadable: set[str]


def read_items(body: str, *, strict: bool) -> Items:
    """Split `body` into items. Raises: InputError (strict only)."""
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
                    refuse("IsaBadVersion", Message("the version of {text} is not written like 2p1 or 2", text=letter))
            if letter == "u" and not strict:
                legacy = True
                continue
            if strict:
                _check_known(letter)
            items.append(Item(letter, version))
        elif strict:
            refuse("IsaBadCharacter", Message("{text} is no part of an ISA string", text=repr(letter)))
        else:
            at += 1
    return Items(items, legacy, unreadable)


def _read_long(word: str, *, strict: bool) -> Item | None:
    """Return the item, or None where a lenient reader skips it."""
    found = _LONG_NAME.fullmatch(word)
    if found is None:
        if strict:
            bad = next(letter for letter in word if not letter.isalnum() or not letter.isascii())
            refuse(
                "IsaBadCharacter",
                Message("{text} in {text_b} is no part of an ISA string", text=repr(bad), text_b=repr(word)),
            )
        return None
    name = found[1]
    if _DIGIT_P.search(name):
        if strict:
            refuse("IsaBadVersion", Message("the version of {text} is not written like 2p1 or 2", text=repr(word)))
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
            hint = "longer names begin with z, s or x and follow a _" if name not in "sxz" else ""
        else:
            from difflib import get_close_matches

            near = get_close_matches(name, EXTENSIONS, n=1, cutoff=0.75)
            hint = Message("did you mean {name}?", name=near[0]) if near else ""
        refuse("IsaUnknownExtension", Message("{text} is no RISC-V extension", text=name), hint=hint)
    if not row["ratified"]:
        refuse("IsaUnratified", Message("{name} is a draft (version {version})", name=name, version=row["version"]))
