"""Output formats of commands: durations, tables in a pipe, ratios."""

from __future__ import annotations

import io

import pytest

from hetsched.cli.output import console, duration, table
from hetsched.cli.resources import _table_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"), (0.04, "0.1 s"), (9.96, "10 s"), (59.2, "1 min"), (299.5, "5 min"), (300, "5 min"),
        (3599.5, "1 h"), (7199, "2 h"), (4 * 3600 - 1, "4 h"), (3661, "1 h 2 min"), (86_399, "1 d"),
        (90_061, "1 d 2 h"),
    ],
)  # fmt: skip
def test_durations_are_rounded_up(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_table_in_a_pipe_has_no_padding() -> None:
    stream = io.StringIO()
    shown = table("name", "text")
    shown.add_row("a", "x" * 150)
    shown.add_row("b", "short")
    console(stream).print(shown)
    assert stream.getvalue() == f"name  text\na     {'x' * 150}\nb     short\n"


@pytest.mark.parametrize(
    ("column", "value", "text"), [("cpu", 0.4514, "45%"), ("gpu", 0.0, "0%"), ("memory", None, "-"), ("cards", 4, "4")]
)
def test_ratio_of_a_node_is_written_in_percent(column: str, value: float | None, text: str) -> None:
    assert _table_text(column, value) == text
