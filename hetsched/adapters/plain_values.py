"""YAML and JSON text as plain values: dicts, lists and scalars.

Texts are untrusted. With anchors, 400 bytes can expand to gigabytes. Deep nesting breaks recursive readers. A duplicate
key has no defined meaning. A lone surrogate or a NUL causes an error later, in the database. This module accepts JSON,
and YAML without anchors, aliases, tags and merge keys. Nesting is limited to `MAX_DEPTH`, and the number of values is
limited. Keys must be unique, text must not contain NUL or lone surrogates, and numbers must be finite. Plain YAML
scalars are interpreted as by the API server (`yes` is true, a date is text).
Source: YAML 1.1 as in sigs.k8s.io/yaml.
Invariant: values are built from parser events in one pass, so nothing is expanded before it is rejected.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import yaml

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message

MAX_DEPTH = 32
MAX_NODES = 4_000_000

Plain = dict[str, Any]

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SPELT: dict[str, bool | None] = {
    "null": None, "true": True, "yes": True, "on": True, "false": False, "no": False, "off": False,
}  # fmt: skip
_WORDS: dict[str, bool | None] = {
    "": None,
    "~": None,
    **{form: value for word, value in _SPELT.items() for form in (word, word.capitalize(), word.upper())},
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9_]{0,400}|0o?[0-7_]{1,400}|0x[0-9a-fA-F_]{1,400}|0b[01_]{1,400})")
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]{1,4})?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_MAYBE_SPECIAL = frozenset("0123456789.+-~nNtTyYfFoO")
_CORE_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq"))
SPLIT = "Split the file, or reduce the number of objects"
_SHORTER_NUMBER = "Write the number with fewer digits"
_REMOVE = "Remove the character"
SYNTAX = "Check the brackets, quotes and indentation at this place"


def malformed(message: str, place: str = "", *, hint: str = "") -> InputError:
    """Return the error of a text that is not well-formed."""
    return InputError("ManifestMalformed", message, place=place, hint=hint)


# -- JSON ----------------------------------------------------------------------------------------------------------


def read_json(text: str, *, max_nodes: int = MAX_NODES) -> Any:
    """Read one JSON value.

    Raises: InputError; json.JSONDecodeError if the text is not JSON.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_not_finite)
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError:
        raise
    except InputError:
        raise
    except ValueError:
        raise InputError("NumberTooLarge", "a number has too many digits", hint=_SHORTER_NUMBER) from None
    _check_tree(value, max_nodes)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> Plain:
    built = dict(pairs)
    if len(built) != len(pairs):
        seen: set[str] = set()
        _duplicate(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return built


def _duplicate(key: str) -> NoReturn:
    message = Message("the key {text} occurs twice in one mapping", text=repr(key[:80]))
    raise InputError("ManifestDuplicateKey", message, hint="Remove one of the two entries")


def _not_finite(word: str) -> NoReturn:
    raise InputError(
        "NumberNotFinite", Message("{text} is not a finite number", text=word), hint="Write a finite number"
    )


def _too_deep() -> InputError:
    message = Message("the document is nested deeper than {n} levels", n=MAX_DEPTH)
    return InputError("ManifestTooDeep", message, hint="Check the brackets and the indentation")


def _too_many(limit: int) -> InputError:
    message = Message("the document contains more than {n} values", n=limit)
    return InputError("ManifestTooLarge", message, hint=SPLIT)


def _check_tree(value: Any, max_nodes: int) -> None:
    """Check depth, size, text and numbers of a decoded value, level by level."""
    level: list[Any] = [value]
    count = depth = 0
    while level:
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                for key in item:
                    check_text(key)
                below.extend(item.values())
            elif kind is list:
                below.extend(item)
            elif kind is str:
                check_text(item)
            elif kind is float and not math.isfinite(item):
                _not_finite(repr(item))
        count += len(level)
        depth += 1
        if count > max_nodes:
            raise _too_many(max_nodes)
        if depth > MAX_DEPTH + 1:
            raise _too_deep()
        level = below


def check_text(text: str) -> None:
    """Reject text that cannot be encoded in UTF-8 or stored in a database. Raises: InputError."""
    if "\0" in text:
        message = Message("{text} contains a NUL character", text=repr(text[:40]))
        raise InputError("TextHasNul", message, hint=_REMOVE)
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        message = Message("{text} contains an unpaired surrogate", text=repr(text[:40]))
        raise InputError("TextHasSurrogate", message, hint=_REMOVE)


# -- YAML ----------------------------------------------------------------------------------------------------------


def read_yaml(text: str, name: str, max_nodes: int) -> Iterator[tuple[int, Any]]:
    """Yield each YAML document with its number, counted from 1 and including empty documents."""
    number = 0
    builder = _Builder(max_nodes)
    line = 0
    try:
        events: Iterator[Any] = yaml.parse(text, Loader=LOADER)
        for event in events:
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                number += 1
            elif isinstance(event, yaml.DocumentEndEvent):
                yield number, builder.take()
            elif not isinstance(event, yaml.StreamStartEvent | yaml.StreamEndEvent):
                builder.add(event)
    except InputError as error:
        raise InputError(error.code, error.message, place=f"{name}#{number} line {line}", hint=error.hint) from None
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark or error.context_mark
        where = name if mark is None else f"{name}:{mark.line + 1}"
        raise _not_yaml(error.problem or str(error.context), where) from None
    except yaml.YAMLError as error:
        raise _not_yaml(" ".join(str(error).split())[:200], name) from None


def _not_yaml(text: str, place: str) -> InputError:
    return malformed(Message("the document is not valid YAML: {text}", text=text), place, hint=SYNTAX)


class _Builder:
    """Builds one plain value from YAML events."""

    __slots__ = ("_count", "_key", "_limit", "_stack", "_value")

    def __init__(self, max_nodes: int) -> None:
        self._limit = max_nodes
        self._count = 0
        # Open collections from the outermost to the innermost, each with its key in the parent mapping.
        self._stack: list[tuple[Any, str | None]] = []
        self._key: str | None = None
        self._value: Any = None

    def take(self) -> Any:
        """Return the finished document and start the next."""
        value, self._value = self._value, None
        return value

    def add(self, event: Any) -> None:
        kind = type(event)
        if kind is yaml.ScalarEvent:
            self._check(event)
            stack = self._stack
            if stack and self._key is None and type(stack[-1][0]) is dict:
                self._open_key(event)
            else:
                self._put(_scalar(event))
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            self._check(event)
            if self._stack and self._key is None and type(self._stack[-1][0]) is dict:
                raise malformed("a mapping key must be a scalar, not a collection")
            if len(self._stack) >= MAX_DEPTH:
                raise _too_deep()
            collection: Any = {} if kind is yaml.MappingStartEvent else []
            self._stack.append((collection, self._key))
            self._key = None
        elif kind is yaml.AliasEvent:
            _refuse_anchor()
        else:
            collection, self._key = self._stack.pop()
            self._put(collection)

    def _check(self, event: Any) -> None:
        if event.anchor is not None:
            _refuse_anchor()
        if event.tag is not None and event.tag != "!" and event.tag not in _CORE_TAGS:
            message = Message("the tag {text} is not allowed", text=repr(event.tag[:80]))
            raise InputError("YamlTagRefused", message, hint="Remove the tag")
        self._count += 1
        if self._count > self._limit:
            raise _too_many(self._limit)

    def _open_key(self, event: Any) -> None:
        key: str = event.value
        check_text(key)
        if key == "<<" and event.implicit[0]:
            raise InputError("YamlAliasRefused", "merge keys are not allowed", hint="Write the fields in full")
        if key in self._stack[-1][0]:
            _duplicate(key)
        self._key = key

    def _put(self, value: Any) -> None:
        if not self._stack:
            self._value = value
        elif self._key is None:
            self._stack[-1][0].append(value)
        else:
            self._stack[-1][0][self._key] = value
            self._key = None


def _refuse_anchor() -> NoReturn:
    raise InputError("YamlAliasRefused", "anchors and aliases are not allowed", hint="Write the value in full")


def _scalar(event: Any) -> Any:
    """Return the value of a scalar; a quoted scalar is always text."""
    text: str = event.value
    if not event.implicit[0] and (event.tag is None or event.tag in ("!", "tag:yaml.org,2002:str")):
        check_text(text)
        return text
    if text and text[0] not in _MAYBE_SPECIAL:
        check_text(text)
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return _integer(text.replace("_", ""))
    if _FLOAT.fullmatch(text):
        number = float(text.replace("_", ""))
        return number if math.isfinite(number) else _not_finite(text)
    if _NOT_FINITE.fullmatch(text):
        _not_finite(text)
    check_text(text)
    return text


def _integer(text: str) -> int:
    digits = text.lstrip("+-")
    value = int(digits, 8) if len(digits) > 1 and digits.isdigit() and digits[0] == "0" else int(digits, 0)
    return -value if text[0] == "-" else value
