"""What commands print: people's text, one JSON document, progress, errors.

Rule: results go to standard output, everything else to standard error. `-o json` prints exactly one document and
nothing else. Colour and moving bars appear on a terminal only; text says everything that colour says.
An error is one message: `error [Code] place: reason`, then what to do.
"""

from __future__ import annotations

import enum
import sys
import time
from types import TracebackType
from typing import Annotated, Any, TextIO

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hetsched.contracts.errors import InputError

QUIET_SECONDS = 2.0
_PIPE_WIDTH = 200


class OutputFormat(enum.StrEnum):
    TEXT = "text"
    JSON = "json"


Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="Text for people, or one JSON document.")]


def console(stream: TextIO | None = None) -> Console:
    """Return a console on standard output, or on `stream`; a pipe gets wide, plain lines."""
    stream = sys.stdout if stream is None else stream
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(file=stream, highlight=False, width=width, emoji=False)


def print_json(document: Any) -> None:
    """Write one JSON document, indented, to standard output."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")


def print_error(error: InputError) -> None:
    """Write one refused input to standard error."""
    out = console(sys.stderr)
    place = f"{error.place}: " if error.place else ""
    out.print(f"[bold red]error[/] \\[{error.code}] {escape(place + error.message)}", soft_wrap=True)
    if error.hint:
        out.print(f"  [dim]{escape(error.hint)}[/]", soft_wrap=True)


def note(text: str) -> None:
    """Write one line about the run, not about its result, to standard error."""
    console(sys.stderr).print(escape(text), style="dim", soft_wrap=True)


def table(*columns: str, right: tuple[str, ...] = (), title: str | None = None) -> Table:
    """Return an empty table with plain rules; columns named in `right` hold numbers."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        number = column in right
        made.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=number)
    return made


def duration(seconds: float) -> str:
    """Write a time in the one or two units that matter."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, below, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit} {rest} {name}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


class Track:
    """Tell how far a long run is: a bar on a terminal, else a line each time two more seconds have passed."""

    def __init__(self, title: str, total: int = 1) -> None:
        self.title = title
        self.total = total
        self._told = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                console=console(sys.stderr), transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(escape(title), total=total)

    def __enter__(self) -> Track:
        if self._bar is not None:
            self._bar.start()
        return self

    def __call__(self, done: int, total: int | None = None) -> None:
        self.total = total or self.total
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=self.total)
        elif time.monotonic() - self._told > QUIET_SECONDS:
            self._told = time.monotonic()
            note(f"{self.title}: {done:,} of {self.total:,}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
