"""Translate messages of the engine, the ledger and the API into the language of the reader.

The engine words its messages in English, because it has no translations; the ledger stores them and REST returns them
unchanged. A page translates a message when it is displayed, even a year later. A `Message` has its template and its
parameters. Any other text is matched against patterns
(`sentences`), which are entries of the catalogue under the context `message`, and those that plugins declare with their
translations (`translations` of the decorator `plugin`). The name of a placeholder defines the text
that it matches:
    n, m, k         a whole number
    names...        words between commas, unchanged
    text...         any text, unchanged
    `said`, `told`  a sentence, translated in turn; behind a colon it may be an unknown sentence
    each            sentences between semicolons, each behind a number of nodes
    any other       one word without spaces, unchanged
The pattern with the most fixed letters wins; patterns that begin with any text are tried last. Sentences between
semicolons or full stops, alternatives between `, or` and changes between `and` are translated one by one; a leading
name of a pod or a field is kept. A text without a matching pattern is returned unchanged.
Invariant: `static/js/messages.js` applies the same rules to the result of `catalogue`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import msgspec
from django.utils import translation
from django.utils.translation import pgettext

from hetsched.contracts.message import Message, as_text, from_parts
from hetsched.engine.framework.registry import load_registry

from .pages.sentences.documents import DOCUMENTS
from .pages.sentences.doors import DOORS
from .pages.sentences.engine import ENGINE
from .pages.sentences.ledger import LEDGER
from .pages.sentences.problems import PROBLEMS
from .pages.sentences.programs import PROGRAMS

SENTENCES = (*ENGINE, *LEDGER, *PROBLEMS, *DOORS, *DOCUMENTS, *PROGRAMS)

_HOLE = re.compile(r"\{(\w+)\}")
_KEY = re.compile(r"(\S+/\S+?|\S+(?=:))(:?) (.+)", re.DOTALL)
_COUNTED = re.compile(r"(\d+) (.+)", re.DOTALL)
_ANY = ".+?"


class Catalogue(msgspec.Struct, frozen=True):
    """The translations for a script: [source, translation] of every pattern in matching order, and the separators."""

    patterns: list[tuple[str, str]]
    glue: dict[str, str]


def translate(text: str) -> str:
    """Translate an English message into the active language; return unknown messages unchanged."""
    language = translation.get_language() or "en"
    if not text or language.startswith("en"):
        return str(text)
    if isinstance(text, Message) and text.params:
        return _rendered(text, language)
    known = _translation(text, language)
    return known if known != text else _say(text, language) or str(text)


def language_of(request: Any) -> str:
    """Return the language of a response of REST: of LocaleMiddleware for a browser session, English for a token."""
    if request is None or "Authorization" in request.headers:
        return "en"
    return translation.get_language() or "en"


def hook_for(language: str) -> Callable[[Any], str]:
    """Return the `enc_hook` of documents in English or in the active language."""
    return as_text if language.startswith("en") else _as_translation


def _as_translation(value: Any) -> str:
    if isinstance(value, Message):
        return translate(value)
    raise NotImplementedError


def with_summaries(decisions: dict[str, Any]) -> dict[str, Any]:
    """Return entries of the topic `decisions` with summaries in the active language; removed entries are None."""
    return {pk: one and {**one, "summary": _summary(one)} for pk, one in decisions.items()}


def _summary(decision: dict[str, Any]) -> str:
    return translate(from_parts(Message, decision.get("message", decision["summary"])))


def _rendered(message: Message, language: str) -> str:
    """Return a message in a language: its template translated, then its parameters filled in."""
    template = _translation(message.template, language)
    if isinstance(message.params, tuple):
        return template.join([_value(value) for value in message.params])
    return template.format_map({name: _value(value) for name, value in message.params.items()})


def _value(value: Any) -> str:
    """Return a parameter in the active language; names, numbers and texts of other programs stay as they are."""
    return translate(value) if isinstance(value, Message) else str(value)


def catalogue() -> Catalogue:
    """Return the patterns in the active language."""
    language = translation.get_language() or "en"
    return Catalogue([(source, _translation(source, language)) for source, *_ in _patterns()], _glue())


def reload() -> None:
    """Read the messages of the plugins again."""
    for cached in (_say, _patterns, _declared):
        cached.cache_clear()


@lru_cache(maxsize=16384)
def _say(text: str, language: str) -> str | None:
    """Translate a sentence into the active language; None if it is unknown. Parts are shorter, so recursion ends."""
    for between in (", or ", "; ", ". ", " and "):
        if between in text and None not in (parts := [_say(part, language) for part in text.split(between)]):
            return _glue()[between].join(filter(None, parts))
    for source, begin, end, pattern in _patterns():
        if not (text.startswith(begin) and text.endswith(end)):
            continue
        found = pattern.fullmatch(text)
        if found is not None and (said := _filled(source, found.groupdict(), language)) is not None:
            return said
    return _in_part(text, language)


def _filled(source: str, holes: dict[str, str], language: str) -> str | None:
    values = {}
    for name, value in holes.items():
        inner: str | None = value
        if name in ("said", "told"):
            inner = _say(value, language) or (value if f": {{{name}}}" in source else None)
        elif name == "each":
            inner = _glue()["; "].join(_counted(part, language) for part in value.split("; "))
        elif name.startswith("names"):
            inner = value.replace(", ", _glue()[", "])
        if inner is None:
            return None
        values[name] = inner
    return _HOLE.sub(lambda hole: values[hole[1]], _translation(source, language))


def _translation(source: str, language: str) -> str:
    """Return the translation that a plugin declares, else that of the catalogue."""
    return _declared().get(language, {}).get(source) or pgettext("message", source)


@cache
def _declared() -> dict[str, dict[str, str]]:
    """Return the messages of all plugins with their translations, by language."""
    found: dict[str, dict[str, str]] = {}
    for info in load_registry():
        for language, texts in info.translations.items():
            found.setdefault(language, {}).update(texts)
    return found


def _counted(part: str, language: str) -> str:
    found = _COUNTED.fullmatch(part)
    if found is None:
        return _say(part, language) or part
    return _glue()["counted"].format(count=found[1], said=_say(found[2], language) or found[2])


def _in_part(text: str, language: str) -> str | None:
    """Translate the text after a pod's name, or the known ones of several sentences."""
    if (found := _KEY.fullmatch(text)) and (said := _say(found[3], language)) is not None:
        return f"{found[1]}{_glue()[': '] if found[2] else ' '}{said}"
    parts = text.split("; ")
    said_parts = [_say(part, language) for part in parts] if parts[1:] else []
    if not any(said_parts):
        return None
    return _glue()["; "].join(said or part for said, part in zip(said_parts, parts, strict=True))


def _glue() -> dict[str, str]:
    """Return the translated separators by their English form."""
    return {
        ", ": pgettext("message", ", "),
        "; ": pgettext("message", "; "),
        ". ": pgettext("message", ". "),
        ": ": pgettext("message", ": "),
        ", or ": pgettext("message", ", or "),
        " and ": pgettext("message", " and "),
        "counted": pgettext("message", "{count} {said}"),
    }


@cache
def _patterns() -> tuple[tuple[str, str, str, re.Pattern[str]], ...]:
    """Return every sentence with its prefix, its suffix and its pattern, in matching order."""
    found = []
    declared = (source for texts in _declared().values() for source in texts)
    for source in sorted(dict.fromkeys((*SENTENCES, *declared)), key=_order):
        parts = _HOLE.split(source)
        groups = (f"(?P<{part}>{_taken(part)})" if at % 2 else re.escape(part) for at, part in enumerate(parts))
        found.append((source, parts[0], parts[-1], re.compile("".join(groups), re.DOTALL)))
    return tuple(found)


def _order(source: str) -> tuple[bool, int]:
    """Sort patterns that begin with any text last, and those with more fixed letters first."""
    hole = _HOLE.match(source)
    return hole is not None and _taken(hole[1]) == _ANY, -len(_HOLE.sub("", source))


def _taken(hole: str) -> str:
    if hole in ("n", "m", "k"):
        return r"\d+"
    return _ANY if hole in ("said", "told", "each") or hole.startswith(("names", "text")) else r"\S+"
