"""The veil finds a name wherever it stands in JSON: behind a quote, a new line, a sign of another script."""

from __future__ import annotations

import msgspec
import pytest

from hetsched.placement.queries.redaction_scan import HIDDEN, veil

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "before",
    ["", " ", "\n", "\t", '"', "\\", "\\\n", "\\\\\n", "\u0001", "\u4e2d", "\u00e9", "('", "%2B\r\n"],
    ids=ascii,
)
def test_whatever_stands_before_it(before: str) -> None:
    told = msgspec.json.decode(veil(_answer(f"it waits for {before}hush/one-0 and own/two"), {"own"}))
    assert told["summary"] == f"it waits for {before}{HIDDEN} and own/two"


@pytest.mark.parametrize(
    "text", ["a \\ nhush/one", "path/hush/one", "x.hush/one", "nhush/one", "hush", "\nother/one"], ids=ascii
)
def test_what_is_no_name_of_theirs_stays(text: str) -> None:
    told = msgspec.json.decode(veil(_answer(text), {"own"}))
    assert told["summary"] == text


def _answer(summary: str) -> bytes:
    return msgspec.json.encode({"summary": summary, "evictions": [{"pod": "hush/one-0"}]})
