"""`--watch`: show changes as they occur.

On a terminal, one view is redrawn in place several times a second in the current size of the terminal. Otherwise, for
example in the log of a pipeline, each change is printed as a line. The objects are polled over REST.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Annotated, Generic, TextIO, TypeVar

import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from ..output import console

Watch = Annotated[
    bool,
    typer.Option("--watch", help=("Keep showing changes: as a live view on a terminal, otherwise line by line.")),
]
Seen = TypeVar("Seen")

_REDRAWS_A_SECOND = 4
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def follow(
    changes: Iterable[Seen],
    draw: Callable[[Seen, int], Iterable[Text]],
    describe: Callable[[Seen | None, Seen], Iterable[str]],
    *,
    over: Callable[[Seen], bool],
    stream: TextIO | None = None,
    keep: bool = False,
) -> Seen | None:
    """Show the values of `changes` until `over` returns True or there are no more values; return the last value.

    `draw` returns the lines of a view with a given height, and `describe` the log lines of a change. With `keep`, the
    last view stays on the terminal.
    """
    stream = sys.stderr if stream is None else stream
    last: Seen | None = None
    if not stream.isatty():
        out = console(stream)
        for now in changes:
            for line in describe(last, now):
                out.print(Text(f"{time.strftime('%H:%M:%S')}  {line}"), soft_wrap=True)
            last = now
            if over(now):
                break
        return last
    view = LiveView(draw)
    out = console(stream)
    with Live(
        get_renderable=lambda: view, console=out, refresh_per_second=_REDRAWS_A_SECOND, transient=not keep,
        vertical_overflow="crop",
    ) as live:  # fmt: skip
        for now in changes:
            view.now = last = now
            live.refresh()
            if over(now):
                break
    return last


class LiveView(Generic[Seen]):
    """View of the latest value, limited to the height of the terminal."""

    def __init__(self, draw: Callable[[Seen, int], Iterable[Text]]) -> None:
        self.draw = draw
        self.now: Seen | None = None

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        turn = _SPINNER[int(time.monotonic() * _REDRAWS_A_SECOND) % len(_SPINNER)]
        height = max(out.size.height - 1, 2)
        if self.now is None:
            yield Text(f"{turn} loading …", style="dim", no_wrap=True, overflow="ellipsis")
            return
        lines = list(self.draw(self.now, height - 1))[: height - 1]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
            yield line
        yield Text(f"{turn} Ctrl-C closes only this view", style="dim", no_wrap=True, overflow="ellipsis")
