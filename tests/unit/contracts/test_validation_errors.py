"""Errors of msgspec as messages: templates where they are known, the same English text in every case."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from hetsched.contracts.errors import with_path, without_path


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    count: int
    word: Annotated[str, msgspec.Meta(pattern="^a")] = "a"
    choice: Literal["a", "b"] = "a"


@pytest.mark.parametrize(
    ("value", "template", "path"),
    [
        ({"count": "x"}, "Expected {text}, got {text_b}", "$.count"),
        ({}, "Object missing required field {text}", ""),
        ({"count": 1, "other": 1}, "Object contains unknown field {text}", ""),
        ({"count": 1, "word": "b"}, "Expected {text}", "$.word"),
        ({"count": 1, "choice": "c"}, "Invalid enum value {text}", "$.choice"),
    ],
)
def test_known_errors_have_templates(value: Any, template: str, path: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, _Document)
    message, found = without_path(caught.value)
    assert (message.template, found) == (template, path)
    assert with_path(caught.value) == str(caught.value)


def test_unknown_errors_keep_their_text() -> None:
    message, path = without_path(msgspec.ValidationError("Too {many} parts - at `$.x`"))
    assert (message, message.template, path) == ("Too {many} parts", "{text}", "$.x")


@pytest.mark.parametrize("text", [b"[1 2]", b"{", b""])
def test_errors_of_malformed_json_keep_their_text(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(text, type=_Document)
    assert with_path(caught.value) == str(caught.value)
