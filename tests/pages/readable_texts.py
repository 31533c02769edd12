"""Extraction of the readable texts and tooltips of a page, without quoted code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

_CODE = {"code", "pre", "script", "style", "kbd", "time", "textarea", "template"}
_SAID = ("title", "aria-label", "placeholder", "alt", "data-title", "data-text", "data-confirm", "data-done")
_EMPTY = {"area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
# Two words or more, as in sentences. Names with digits, dots or dashes, and filter conditions, do not match.
_ENGLISH = re.compile(r"(?<![\w./:@=~<>!-])[A-Za-z][a-z']*(?: [a-z][a-z']*)+(?![\w./:@=~<>!-])")


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._within: list[bool] = []  # whether each open element contains code

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        code = tag in _CODE or "mono" in (given.get("class") or "").split() or given.get("translate") == "no"
        if not code:
            self.texts += [given[name] or "" for name in _SAID if name in given]
        if tag not in _EMPTY:
            self._within.append(code or bool(self._within and self._within[-1]))

    def handle_endtag(self, tag: str) -> None:
        if tag not in _EMPTY and self._within:
            self._within.pop()

    def handle_data(self, data: str) -> None:
        if not (self._within and self._within[-1]):
            self.texts.append(data)


def english(page: str) -> Iterator[str]:
    """Yield every run of at least two English words on a page."""
    reader = _Reader()
    reader.feed(page)
    for text in reader.texts:
        yield from _ENGLISH.findall(" ".join(text.split()))
