"""Order-preserving pseudonyms.

Anonymised content must show which names are equal. It must also keep the order of names, which breaks ties in
decisions. Names belong to realms, such as nodes or label values. All names of a realm are collected first; then each
gets the realm's stem and its number in the order of names, `node-0001`. Generic names stay unchanged. Names that sort
between two unchanged names get a stem that sorts between these two. A pseudonym contains only a number: no part of the
name and no hash of it.
Invariants: within a realm each name has exactly one pseudonym, and no two names share a pseudonym; pseudonyms sort as
their names do, unless no valid pseudonym sorts between two unchanged names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LEAST_DIGITS = 4


def _is_any(name: str, pseudonym: str) -> bool:
    return True


def _unchanged(name: str, pseudonym: str) -> str:
    return pseudonym


class Realm(NamedTuple):
    """A kind of name, such as node names, with the rules for its pseudonyms.

    Every pseudonym contains `stem`. `order` is the sort key of names, `accepts` checks whether a pseudonym is valid for
    a name, and `write` formats the pseudonym of a name. `of` distinguishes realms that are otherwise equal.
    """

    stem: str
    order: Callable[[str], str] = str
    accepts: Callable[[str, str], bool] = _is_any
    write: Callable[[str, str], str] = _unchanged
    of: str = ""


class Pseudonyms:
    """Collector of names until `settle` is called, and their pseudonyms afterwards."""

    def __init__(self) -> None:
        self._names: dict[Realm, set[str]] = {}
        self._staying: dict[Realm, set[str]] = {}
        self._given: dict[Realm, dict[str, str]] | None = None

    def of(self, realm: Realm, name: str, *, stays: bool = False) -> str:
        """Return the pseudonym of a name.

        Returns the name itself if it is empty, if `stays` is true, or if `settle` has not been called yet.
        """
        if not name:
            return name
        if self._given is None:
            (self._staying if stays else self._names).setdefault(realm, set()).add(name)
            return name
        return name if stays else self._given[realm][name]

    def settle(self) -> None:
        """Assign a pseudonym to every collected name."""
        self._given = {
            realm: dict(_numbered(realm, names, self._staying.get(realm, set())))
            for realm, names in self._names.items()
        }


def _numbered(realm: Realm, names: set[str], staying: set[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, pseudonym) for `names`; names in `staying` remain unchanged and only affect the choice of stems."""
    digits = max(_LEAST_DIGITS, len(str(len(names))))
    number = 0
    for low, run, high in _runs(realm, names, staying):
        numbers = {name: f"{number + position:0{digits}}" for position, name in enumerate(run, 1)}
        stem = _stem(realm, low, high, numbers)
        number += len(run)
        for name, written in numbers.items():
            yield name, realm.write(name, stem + written)


def _runs(realm: Realm, names: set[str], staying: set[str]) -> Iterator[tuple[str, list[str], str]]:
    """Yield (name before, run, name after) for each run of names to rename that lies between two unchanged names.

    Names are in the order of the realm. The name before or after is "" if there is none.
    """
    low, run = "", list[str]()
    for name in sorted(names | staying, key=realm.order):
        if name in names:
            run.append(name)
            continue
        if run:
            yield low, run, name
        low, run = name, []
    if run:
        yield low, run, ""


def _stem(realm: Realm, low: str, high: str, numbers: dict[str, str]) -> str:
    """Return the first stem that sorts between `low` and `high`, or the realm's own stem if no valid stem does."""
    for stem in _stems(realm.stem, low):
        between = low < stem and (not high or (stem < high and not high.startswith(stem)))
        if between and all(realm.accepts(name, realm.write(name, stem + number)) for name, number in numbers.items()):
            return stem
    return realm.stem


def _stems(own: str, low: str) -> Iterator[str]:
    yield own
    for length in range(len(low) + 1):
        for letter in _LETTERS:
            yield f"{low[:length]}{letter}-{own}"
