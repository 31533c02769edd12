"""`--watch`: what changes, while it changes.

Rule: on a terminal one view, drawn again in place several times a second, as wide and high as the terminal is then;
elsewhere, in a pipeline's log, a line for each thing that changed. What is watched is looked at over REST.
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

from .output import console

Watch = Annotated[bool, typer.Option("--watch", help="Show what changes meanwhile: a live view on a terminal.")]
Seen = TypeVar("Seen")

_REDRAWS_A_SECOND = 4
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def follow(
    changes: Iterable[Seen],
    draw: Callable[[Seen, int], Iterable[Text]],
    tell: Callable[[Seen | None, Seen], Iterable[str]],
    *,
    over: Callable[[Seen], bool],
    stream: TextIO | None = None,
    keep: bool = False,
) -> Seen | None:
    """Show what `changes` yields until it is `over` or there are no more, and return the last.

    `draw` returns the lines of a view that may have so many, `tell` what is to be said of a change in lines of a log;
    with `keep` the last view stays on the terminal.
    """
    stream = sys.stderr if stream is None else stream
    last: Seen | None = None
    if not stream.isatty():
        out = console(stream)
        for now in changes:
            for line in tell(last, now):
                out.print(Text(f"{time.strftime('%H:%M:%S')}  {line}"), soft_wrap=True)
            last = now
            if over(now):
                break
        return last
    view = View(draw)
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


class View(Generic[Seen]):
    """The latest of what is watched, as high as the terminal is when it is drawn."""

    def __init__(self, draw: Callable[[Seen, int], Iterable[Text]]) -> None:
        self.draw = draw
        self.now: Seen | None = None

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        turn = _SPINNER[int(time.monotonic() * _REDRAWS_A_SECOND) % len(_SPINNER)]
        height = max(out.size.height - 1, 2)
        if self.now is None:
            yield Text(f"{turn} asking …", style="dim", no_wrap=True, overflow="ellipsis")
            return
        lines = list(self.draw(self.now, height - 1))[: height - 1]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
            yield line
        yield Text(f"{turn} Ctrl-C stops the watching only", style="dim", no_wrap=True, overflow="ellipsis")
