"""Text filters of users with the wildcard `*`, matched in Python and in the database with the same result.

`*` matches any characters, and every other character matches itself. ASCII letters are compared without case, all other
characters exactly. SQLite, PostgreSQL (with any locale) and `Wildcard` all compare in this way. User text never becomes
a regular expression. Python searches the pieces between the stars from left to right with `str.find`; the databases use
LIKE with `%`, `_` and the escape character escaped. The time of both is at most proportional to the length of the
pattern times the length of the text, because a matched piece is never searched again. Lookups of text columns:
`text_contains`, `text_equals`, `text_starts`, `text_matches` (with `*`); of a JSON column of reasons: `codes_match`.
"""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase
from typing import Any

from django.db.models import CharField, JSONField, Lookup, TextField

_FOLD = str.maketrans(ascii_uppercase, ascii_lowercase)
_ESCAPE = str.maketrans({character: f"\\{character}" for character in "\\%_"})


def folded(text: str) -> str:
    """Return the text with ASCII letters in lower case and all other characters unchanged."""
    return text.lower() if text.isascii() else text.translate(_FOLD)


class Wildcard:
    """Pattern with `*`, matched against whole texts."""

    def __init__(self, pattern: str) -> None:
        first, *rest = folded(pattern).split("*")
        self._first = first
        self._last = rest[-1] if rest else None
        self._between = [piece for piece in rest[:-1] if piece]

    def matches(self, text: str) -> bool:
        found = folded(text)
        if self._last is None:
            return found == self._first
        end = len(found) - len(self._last)
        at = len(self._first)
        if at > end or not found.startswith(self._first) or not found.endswith(self._last):
            return False
        for piece in self._between:
            at = found.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True


def literal(text: str) -> str:
    """Return the LIKE pattern that matches exactly this text."""
    return folded(text).translate(_ESCAPE)


def like(pattern: str) -> str:
    """Return the LIKE pattern of a wildcard pattern; consecutive `*` become one `%`."""
    first, *rest = literal(pattern).split("*")
    return "".join([first, *(f"%{piece}" for piece in rest[:-1] if piece), *(f"%{piece}" for piece in rest[-1:])])


class _TextLookup(Lookup):
    """Lookup that compares a column with a LIKE pattern."""

    prepare_rhs = False
    _pattern: Any

    def get_prep_lookup(self) -> str:
        return str(type(self)._pattern(str(self.rhs)))

    def get_db_prep_lookup(self, value: Any, connection: Any) -> Any:
        return "%s", [value]

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """Return LIKE for SQLite, which ignores the case of ASCII letters."""
        column, parameters = self.process_lhs(compiler, connection)
        pattern, values = self.process_rhs(compiler, connection)
        return f"{column} LIKE {pattern} ESCAPE '\\'", (*parameters, *values)

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """Return LIKE for PostgreSQL; with its collation C only ASCII letters change case."""
        column, parameters = self.process_lhs(compiler, connection)
        pattern, values = self.process_rhs(compiler, connection)
        return f"LOWER(({column})::text COLLATE \"C\") LIKE {pattern} ESCAPE '\\'", (*parameters, *values)


class TextContains(_TextLookup):
    lookup_name = "text_contains"
    _pattern = staticmethod(lambda text: f"%{literal(text)}%")


class TextEquals(_TextLookup):
    lookup_name = "text_equals"
    _pattern = staticmethod(literal)


class TextStarts(_TextLookup):
    lookup_name = "text_starts"
    _pattern = staticmethod(lambda text: f"{literal(text)}%")


class TextMatches(_TextLookup):
    lookup_name = "text_matches"
    _pattern = staticmethod(like)


class CodesMatch(_TextLookup):
    """Lookup that matches a wildcard against the codes of the reasons in a JSON column."""

    lookup_name = "codes_match"
    _pattern = staticmethod(like)

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        column, parameters = self.process_lhs(compiler, connection)
        pattern, values = self.process_rhs(compiler, connection)
        each = f"json_each({column}) AS reason WHERE json_extract(reason.value, '$.code')"
        return f"EXISTS (SELECT 1 FROM {each} LIKE {pattern} ESCAPE '\\')", (*parameters, *values)  # noqa: S608

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        column, parameters = self.process_lhs(compiler, connection)
        pattern, values = self.process_rhs(compiler, connection)
        each = f"jsonb_path_query({column}, '$[*].code') AS code WHERE LOWER((code #>> '{{}}') COLLATE \"C\")"
        return f"EXISTS (SELECT 1 FROM {each} LIKE {pattern} ESCAPE '\\')", (*parameters, *values)  # noqa: S608


def register() -> None:
    for field in (CharField, TextField):
        for lookup in (TextContains, TextEquals, TextStarts, TextMatches):
            field.register_lookup(lookup)
    JSONField.register_lookup(CodesMatch)
