"""Parse filter expressions: `isa>=rv64gcv state=ready,cordoned -label:pool=ci "free words"`.

Terms are separated by spaces, and all of them have to match. A term is FIELD OPERATOR VALUE. Spaces around the operator
are allowed, values separated by commas are alternatives, a leading `-` negates the term, and quotes group a value. A
word without an operator is a free word, which may occur anywhere in the row. An invalid term makes the whole filter
invalid. The error contains the position of the term in the text and, if there is a close match, a suggestion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import msgspec
from django.db.models import Q
from django.utils.translation import gettext as _

from .kinds import UNKNOWN, ChoiceKind, InvalidValue, Test, ValueKind, is_any

MOST_CHARACTERS = 1000
_TOKEN = re.compile(r'(?:[^\s"]|"[^"]*"?)+')
_TERM = re.compile(
    r'(?P<field>[A-Za-z][A-Za-z0-9.-]*)(?P<key>:[^<>=!~"\s]*)?(?P<op>!=|!~|>=|<=|=|~|>|<)(?P<value>.*)', re.DOTALL
)
_KEY = re.compile(r'(?P<field>[A-Za-z][A-Za-z0-9.-]*):(?P<key>[^<>=!~"\s]+)')
_SPACED = re.compile(r"([A-Za-z][A-Za-z0-9.:/_-]*)\s*(!=|!~|>=|<=|=|~|>|<)\s*")


class FilterField(msgspec.Struct, frozen=True):
    """One filter field. `get` reads its value from rows in memory, `path` is its lookup for database rows.

    `heavy` is true if the field needs facts that are not loaded by default. `found` is true if suggested values are
    read from the data.
    """

    name: str
    kind: ValueKind
    help: Any
    get: Callable[..., Any] | None = None
    path: str = ""
    heavy: bool = False
    found: bool = False


class FilterTerm(msgspec.Struct, frozen=True):
    """One condition; `start` and `end` are its position in the expression. A free word has no field."""

    start: int
    end: int
    negated: bool
    operation: str
    values: tuple[str, ...]
    field: FilterField | None = None
    key: str = ""


class ExpressionProblem(msgspec.Struct, frozen=True):
    """An error in an expression and its position; `instead` is the suggested expression."""

    message: str
    start: int
    end: int
    text: str
    instead: str = ""

    @property
    def before(self) -> str:
        return self.text[: self.start]

    @property
    def marked(self) -> str:
        return self.text[self.start : self.end]

    @property
    def after(self) -> str:
        return self.text[self.end :]


class InvalidExpression(Exception):
    """Raised for an invalid expression."""

    def __init__(self, problem: ExpressionProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def read(text: str, fields: Mapping[str, FilterField]) -> tuple[FilterTerm, ...]:
    """Return the terms of an expression.

    Raises: InvalidExpression.
    """
    closed = _without_spaces(text, fields)
    return tuple(_term(closed, found.start(), found.end(), fields) for found in _TOKEN.finditer(closed))


def _without_spaces(text: str, fields: Mapping[str, FilterField]) -> str:
    """Remove the spaces around operators that follow the name of a field."""
    pieces = re.split(r'("[^"]*"?)', text)

    def closed(found: re.Match[str]) -> str:
        known = found[1].split(":")[0].lower() in fields
        return f"{found[1]}{found[2]}" if known else found[0]

    return "".join(piece if piece.startswith('"') else _SPACED.sub(closed, piece) for piece in pieces)


def _term(text: str, start: int, end: int, fields: Mapping[str, FilterField]) -> FilterTerm:
    negated = text[start] == "-" and end - start > 1
    at = start + negated
    token = text[at:end]
    found = _TERM.fullmatch(token)
    if found is None:
        keyed = _KEY.fullmatch(token)
        if keyed and (field := fields.get(keyed["field"].lower())) and field.kind.keyed:
            return FilterTerm(start, end, negated, "", (), field, keyed["key"])
        return FilterTerm(start, end, negated, "", (token.replace('"', ""),))
    field = fields.get(found["field"].lower())
    if field is None:
        named = at + len(found["field"])
        nearest = get_close_matches(found["field"].lower(), list(fields), 1, 0.5)
        raise _problem(_("Unknown field “%(name)s”") % {"name": found["field"]}, text, at, named, "".join(nearest))
    key = (found["key"] or "")[1:]
    operators = ("=", "!=", "~", "!~") if field.kind.keyed else field.kind.operators
    if field.kind.keyed and not key:
        raise _problem(_("“%(name)s” needs a key, for example label:pool=ci") % {"name": field.name}, text, at, end, "")
    if found["op"] not in operators:
        place = at + found.start("op")
        said = _("“%(name)s” supports these operators: %(operators)s")
        raise _problem(
            said % {"name": field.name, "operators": " ".join(operators)},
            text,
            place,
            at + found.end("op"),
            operators[0],
        )
    values = _alternatives(found["value"])
    place = at + found.start("value")
    if not any(values):
        raise _problem(_("“%(term)s” needs a value") % {"term": token}, text, at, end, "")
    term = FilterTerm(
        start, end, negated ^ found["op"].startswith("!"), found["op"].removeprefix("!"), values, field, key
    )
    for value in values:
        length = len(value)
        try:
            _test(term, value)
        except InvalidValue as wrong:
            offset = place + max(0, found["value"].find(value))
            raise _problem(str(wrong), text, offset, offset + length, wrong.nearest) from None
    return term


def _alternatives(text: str) -> tuple[str, ...]:
    pieces = re.findall(r'(?:[^,"]|"[^"]*"?)+', text)
    return tuple(piece.replace('"', "") for piece in pieces if piece.replace('"', ""))


def _problem(message: str, text: str, start: int, end: int, instead: str) -> InvalidExpression:
    whole = f"{text[:start]}{instead}{text[end:]}" if instead else ""
    return InvalidExpression(ExpressionProblem(message, start, end, text, whole))


def _test(term: FilterTerm, value: str) -> Test:
    assert term.field is not None
    kind = term.field.kind
    if (
        value.lower() == UNKNOWN
        and term.operation == "="
        and not (isinstance(kind, ChoiceKind) and UNKNOWN in kind.values())
    ):
        return lambda found: found is None
    inner = (ValueKind() if kind.keyed else kind).test(term.operation, value)
    return lambda found: found is not None and inner(found)


def predicate(terms: tuple[FilterTerm, ...], words: Callable[[Any], str]) -> Callable[[Any], bool]:
    """Return the predicate for rows in memory; `words` returns the text of a row, in lower case, in which free words
    are searched.
    """
    tests = [_row_test(term, words) for term in terms]
    return lambda row: all(test(row) for test in tests)


def _row_test(term: FilterTerm, words: Callable[[Any], str]) -> Test:
    negated, field = term.negated, term.field
    if field is None:
        word = term.values[0].lower()
        return lambda row: (word in words(row)) is not negated
    get, key = field.get, term.key
    assert get is not None
    if field.kind.keyed and not term.values:
        return lambda row: (key in get(row)) is not negated
    holds = is_any(_test(term, value) for value in term.values)
    if field.kind.keyed:
        return lambda row: holds(get(row).get(key)) is not negated
    return lambda row: holds(get(row)) is not negated


def condition(terms: tuple[FilterTerm, ...], words: Callable[[str], Q]) -> Q:
    """Return the same filter as a database condition; `words` returns the condition for one free word."""
    whole = Q()
    for term in terms:
        if term.field is None:
            one = words(term.values[0])
        else:
            one = Q()
            for value in term.values:
                one |= _condition(term, term.field, value)
        whole &= ~one if term.negated else one
    return whole


def _condition(term: FilterTerm, field: FilterField, value: str) -> Q:
    if value.lower() == UNKNOWN and term.operation == "=" and not isinstance(field.kind, ChoiceKind):
        return Q(**{f"{field.path}__isnull": True})
    return field.kind.condition(term.operation, value, field.path)
