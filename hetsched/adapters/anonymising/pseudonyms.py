"""Other names for names, in the same order.

Problem: who may not learn what something is called must still see which names are equal, and decisions break ties by
the order of names.
Rule: names belong to realms, such as nodes or values of labels. A realm is first told all its names; then each gets the
realm's stem and its number in the order of names, `node-0001`. Between names that stay, the stem is one that sorts
there. Numbers are all that is kept: nothing of a name goes into its pseudonym, and no hash of it.
Invariants: one name, one pseudonym within a realm, and never one for two; pseudonyms sort as their names do, unless no
name that is allowed sorts between two that stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LEAST_DIGITS = 4


def _is_any(name: str, pseudonym: str) -> bool:
    return True


def _as_it_is(name: str, pseudonym: str) -> str:
    return pseudonym


class Realm(NamedTuple):
    """A kind of names: what its pseudonyms begin with, by what names sort, which pseudonym may stand for a name.

    `write` makes a pseudonym of a name out of stem and number; `of` tells realms apart that are alike.
    """

    stem: str
    order: Callable[[str], str] = str
    may_stand: Callable[[str, str], bool] = _is_any
    write: Callable[[str, str], str] = _as_it_is
    of: str = ""


class Pseudonyms:
    """Takes names until it is settled, and from then on returns their pseudonyms."""

    def __init__(self) -> None:
        self._told: dict[Realm, set[str]] = {}
        self._staying: dict[Realm, set[str]] = {}
        self._given: dict[Realm, dict[str, str]] | None = None

    def of(self, realm: Realm, name: str, *, stays: bool = False) -> str:
        """Return what stands for a name, itself where it is empty, stays, or nothing is settled yet."""
        if not name:
            return name
        if self._given is None:
            (self._staying if stays else self._told).setdefault(realm, set()).add(name)
            return name
        return name if stays else self._given[realm][name]

    def settle(self) -> None:
        """Give every name that was told its pseudonym."""
        self._given = {
            realm: dict(_numbered(realm, names, self._staying.get(realm, set()))) for realm, names in self._told.items()
        }


def _numbered(realm: Realm, names: set[str], staying: set[str]) -> Iterator[tuple[str, str]]:
    """Yield each name with its pseudonym."""
    digits = max(_LEAST_DIGITS, len(str(len(names))))
    number = 0
    for low, run, high in _runs(realm, names, staying):
        numbers = {name: f"{number + position:0{digits}}" for position, name in enumerate(run, 1)}
        stem = _stem(realm, low, high, numbers)
        number += len(run)
        for name, written in numbers.items():
            yield name, realm.write(name, stem + written)


def _runs(realm: Realm, names: set[str], staying: set[str]) -> Iterator[tuple[str, list[str], str]]:
    """Yield the names between two that stay, in order, with these two; empty where there is none."""
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
    """Return the first stem that sorts between two names that stay; the realm's own where there is none."""
    for stem in _stems(realm.stem, low):
        between = low < stem and (not high or (stem < high and not high.startswith(stem)))
        if between and all(realm.may_stand(name, realm.write(name, stem + number)) for name, number in numbers.items()):
            return stem
    return realm.stem


def _stems(own: str, low: str) -> Iterator[str]:
    yield own
    for length in range(len(low) + 1):
        for letter in _LETTERS:
            yield f"{low[:length]}{letter}-{own}"
