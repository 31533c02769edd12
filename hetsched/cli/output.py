"""Output of commands: text, one JSON document, progress, errors.

Results are printed on standard output and everything else on standard error. `-o json` prints exactly one document and
nothing else. Colour and progress bars are only used on a terminal; the text is complete without colour. An error is one
message: `error [Code] place: reason`, followed by a hint.
"""

from __future__ import annotations

import enum
import math
import re
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Annotated, Any, TextIO, cast

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.warnings import ManifestWarning
from hetsched.contracts.times import in_units, whole_seconds

QUIET_SECONDS = 2.0
_PIPE_WIDTH = 200
_PADDING = re.compile(" +(?=\n)")


class OutputFormat(enum.StrEnum):
    TEXT = "text"
    JSON = "json"


Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="Output format: text or one JSON document.")]


def console(stream: TextIO | None = None) -> Console:
    """Return a console on standard output or on `stream`; output to a pipe has long, plain lines without padding."""
    stream = sys.stdout if stream is None else stream
    if stream.isatty():
        return Console(file=stream, highlight=False, emoji=False)
    return Console(file=cast(TextIO, _Unpadded(stream)), highlight=False, width=_PIPE_WIDTH, emoji=False)


class _Unpadded:
    """Text stream that drops the trailing spaces of tables."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_PADDING.sub("", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def print_json(document: Any) -> None:
    """Write one indented JSON document to standard output."""
    sys.stdout.write(msgspec.json.format(encode(document), indent=2).decode() + "\n")


def print_error(error: InputError) -> None:
    """Write an input error, with the errors of other fields of the same input, to standard error."""
    out = console(sys.stderr)
    for one in (error, *error.further):
        place = f"{one.place}: " if one.place else ""
        out.print(f"[bold red]error[/] \\[{one.code}] {escape(place + one.message)}", soft_wrap=True)
        if one.hint:
            out.print(f"  [dim]{escape(one.hint)}[/]", soft_wrap=True)
    print_warnings(error.warnings)


def print_warnings(warnings: Iterable[ManifestWarning]) -> None:
    """Write warnings about a manifest to standard error."""
    out = console(sys.stderr)
    for warning in warnings:
        out.print(f"[yellow]warning[/] \\[{warning.code}] {escape(warning.text)}", soft_wrap=True)


def note(text: str) -> None:
    """Write a line about the run (not its result) to standard error."""
    console(sys.stderr).print(escape(text), style="dim", soft_wrap=True)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table with plain rules; columns in `right` are right-aligned."""
    new_table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        number = column in right
        new_table.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=number)
    return new_table


def duration(seconds: float) -> str:
    """Format a duration in its one or two largest units, rounded up (4 h for 3 h 59 min 59 s)."""
    if seconds <= 9.9:
        return f"{math.ceil(seconds * 10 - 1e-9) / 10:.1f} s"
    return in_units(whole_seconds(seconds))


def age(seconds: float) -> str:
    """Format an age in whole units, rounded down."""
    return f"{in_units(int(seconds))} ago"


class ProgressDisplay:
    """Progress of a long run: a bar on a terminal, otherwise a line every two seconds."""

    def __init__(self, title: str, total: int = 1) -> None:
        self.title = title
        self.total = total
        self._printed_at = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                console=console(sys.stderr), transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(escape(title), total=total)

    def __enter__(self) -> ProgressDisplay:
        if self._bar is not None:
            self._bar.start()
        return self

    def __call__(self, done: int, total: int | None = None) -> None:
        self.total = total or self.total
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=self.total)
        elif time.monotonic() - self._printed_at > QUIET_SECONDS:
            self._printed_at = time.monotonic()
            note(f"{self.title}: {done:,} of {self.total:,}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
