"""Translate messages of the engine, of stored rows and of the API into the language of the reader.

The engine writes its messages in English, because it has no translations. Rows store the templates and parameters of
messages, and REST returns them unchanged to clients with a token. A page translates a message when it is displayed,
even a year later: it translates the template and fills in the parameters. The translation of a template is in the
message catalogue under the context `message`, or is declared by a plugin (`translations` of the decorator `plugin`). A
text without parameters is translated as a whole, and a text without a translation is returned unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from django.utils import translation
from django.utils.translation import pgettext

from hetsched.contracts.message import Message, as_text, from_parts
from hetsched.engine.framework.registry import load_registry


def translate(text: str) -> str:
    """Translate an English message into the active language; return unknown texts unchanged."""
    language = translation.get_language() or "en"
    if not text or language.startswith("en"):
        return str(text)
    if isinstance(text, Message) and text.params:
        return _render(text, language)
    return _translation(str(text), language)


def language_of(request: Any) -> str:
    """Return the language of a REST response: English for a token, and the language of LocaleMiddleware for a browser
    session.
    """
    if request is None or "Authorization" in request.headers:
        return "en"
    return translation.get_language() or "en"


def hook_for(language: str) -> Callable[[Any], str]:
    """Return the msgspec `enc_hook` for messages: if `language` is not English, it translates into the active one."""
    return as_text if language.startswith("en") else _as_translation


def _as_translation(value: Any) -> str:
    if isinstance(value, Message):
        return translate(value)
    return as_text(value)


def with_summaries(decisions: dict[str, Any]) -> dict[str, Any]:
    """Return entries of the topic `decisions` with summaries in the active language; removed entries are None."""
    return {pk: decision and {**decision, "summary": _summary(decision)} for pk, decision in decisions.items()}


def _summary(decision: dict[str, Any]) -> str:
    return translate(from_parts(Message, decision.get("message", decision["summary"])))


def _render(message: Message, language: str) -> str:
    """Return a message in a language: its template translated, then its parameters filled in."""
    template = _translation(message.template, language)
    if isinstance(message.params, tuple):
        return template.join([_render_value(value) for value in message.params])
    return template.format_map({name: _render_value(value) for name, value in message.params.items()})


def _render_value(value: Any) -> str:
    """Return a parameter in the active language; names, numbers and texts of other programs are not translated."""
    return translate(value) if isinstance(value, Message) else str(value)


def reload_translations() -> None:
    """Discard the cached translations of plugins, so that they are read again."""
    _plugin_translations.cache_clear()


def _translation(source: str, language: str) -> str:
    """Return the translation that a plugin declares, else the translation in the message catalogue."""
    return _plugin_translations().get(language, {}).get(source) or pgettext("message", source)


@cache
def _plugin_translations() -> dict[str, dict[str, str]]:
    """Return the message translations of all plugins by language."""
    found: dict[str, dict[str, str]] = {}
    for info in load_registry():
        for language, texts in info.translations.items():
            found.setdefault(language, {}).update(texts)
    return found
