from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.adapters.objects.documents import load_documents


def value(text: str) -> Any:
    (document,) = load_documents(f"apiVersion: v1\nkind: X\na: {text}\n".encode(), name="f")
    return document.object["a"]


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("", None), ("~", None), ("null", None), ("Null", None), ("'null'", "null"),
        ("true", True), ("yes", True), ("On", True), ("OFF", False), ("no", False), ('"yes"', "yes"), ("y", "y"),
        ("1", 1), ("-1", -1), ("+7", 7), ("0", 0), ("010", 8), ("0o17", 15), ("0x1F", 31), ("0b101", 5), ("1_0", 10),
        ("08", 8.0), ("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0), ("-2.", -2.0), ("1e", "1e"), ("_1", "_1"),
        ("500m", "500m"), ("4Gi", "4Gi"), ("1.2.3", "1.2.3"), ("-x", "-x"), ("a-b", "a-b"), ("a.io/b", "a.io/b"),
        ("2026-11-20T10:00:00Z", "2026-11-20T10:00:00Z"), ("2026-11-20", "2026-11-20"), ("12:30:45", "12:30:45"),
        ("!!str 5", "5"), ("'5'", "5"), ("|-\n  x", "x"), ("é", "é"),
    ],
)  # fmt: skip
def test_plain_scalars(text: str, meaning: Any) -> None:
    found = value(text)
    assert (found, type(found)) == (meaning, type(meaning))


def test_keys_are_text_as_written() -> None:
    (document,) = load_documents(b"apiVersion: v1\nkind: X\n1: a\ntrue: b\n", name="f")
    assert document.object["1"] == "a"
    assert document.object["true"] == "b"


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20))
def test_quoted_text_is_kept(text: str) -> None:
    assert value("'" + text.replace("'", "''") + "'") == text


@given(st.integers(-(2**70), 2**70))
def test_integers_are_exact(number: int) -> None:
    assert value(str(number)) == number
