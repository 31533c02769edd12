"""Line and bar charts as inline SVG.

The SVG does not contain scripts or external resources. Colours are CSS classes `s0`..`s7`, which a page defines for
light and dark mode. A series is identified by its dash pattern and its label at the line's end, and not only by colour.
Invariants: the same numbers yield the same text, and every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import msgspec

WIDTH, HEIGHT = 760, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 150, 14, 42
_LETTER_WIDTH = 7.0  # upper bound of the average width of letters at a font size of 12 px
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 2", "6 2 1 2")
_LABEL_GAP = 14.0


class PlotLine(msgspec.Struct, frozen=True):
    """Line of a chart: its points in ascending x; a y of None is a gap."""

    name: str
    points: tuple[tuple[float, float | None], ...]


def line_chart(title: str, series: Sequence[PlotLine], *, x_label: str, y_label: str) -> str:
    """Draw lines on a common scale; an empty chart contains the text "no values"."""
    points = [(x, y) for line in series for x, y in line.points if y is not None]
    if not points:
        return _frame(title, [_text(WIDTH / 2, HEIGHT / 2, "no values", anchor="middle")])
    across = _Scale([x for x, _ in points], _LEFT, WIDTH - _RIGHT)
    up = _Scale([0.0, *(y for _, y in points)], HEIGHT - _BOTTOM, _TOP)
    drawn = _axes(across, up, x_label, y_label)
    ends: list[tuple[float, float, int, str]] = []
    for number, line in enumerate(series):
        runs = _runs(line.points)
        for run in runs:
            path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in run)
            dash = f' stroke-dasharray="{_DASHES[number % len(_DASHES)]}"' if number else ""
            drawn.append(f'<polyline class="s{number % 8}" points="{path}" fill="none" stroke-width="2"{dash}/>')
        if runs:
            x, y = runs[-1][-1]
            ends.append((up(y), across(x), number, line.name))
    drawn += _end_labels(ends)
    return _frame(title, drawn)


def bar_chart(title: str, bars: Sequence[tuple[str, float | None]], *, y_label: str) -> str:
    """Draw one bar for each name, with its value on top."""
    values = [value for _, value in bars if value is not None]
    up = _Scale([0.0, *values], HEIGHT - _BOTTOM, _TOP)
    drawn = _axes(None, up, "", y_label)
    room = (WIDTH - _LEFT - 20) / max(len(bars), 1)
    for number, (name, value) in enumerate(bars):
        left = _LEFT + room * (number + 0.2)
        middle = left + room * 0.3
        for line, part in enumerate(_lines(name, room)):
            drawn.append(_text(middle, HEIGHT - _BOTTOM + 16 + 14 * line, part, anchor="middle"))
        if value is None:
            drawn.append(_text(middle, up(0.0) - 6, "none", anchor="middle"))
            continue
        top = up(value)
        drawn.append(
            f'<rect class="s{number % 8}" x="{left:.1f}" y="{top:.1f}" width="{room * 0.6:.1f}" '
            f'height="{up(0.0) - top:.1f}"/>'
        )
        drawn.append(_text(middle, top - 4, number_text(value), anchor="middle"))
    return _frame(title, drawn)


def title_of(chart: str) -> str:
    """Return the escaped title of a drawn chart."""
    return chart.partition("<title>")[2].partition("</title>")[0]


def _lines(name: str, room: float) -> list[str]:
    """Split a name into two lines at the space nearest to its middle if it is wider than `room`."""
    spaces = [at for at, letter in enumerate(name) if letter == " "]
    if not spaces or len(name) * _LETTER_WIDTH <= room:
        return [name]
    at = min(spaces, key=lambda at: abs(2 * at - len(name)))
    return [name[:at], name[at + 1 :]]


def number_text(value: float | None) -> str:
    """Format a number with a readable number of digits."""
    if value is None:
        return "-"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"


class _Scale:
    """Mapping from values to pixels, with round numbers at both ends."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = min(values), max(values)
        if low == high:
            high = low + 1.0
        self.step = _round_step((high - low) / 5)
        self.low = math.floor(low / self.step) * self.step
        self.high = math.ceil(high / self.step - 1e-9) * self.step
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        count = round((self.high - self.low) / self.step)
        return [self.low + self.step * position for position in range(count + 1)]


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if power * factor >= rough * (1 - 1e-9))


def _runs(points: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """Split the points of a line at its gaps."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is None:
            runs.append([])
        else:
            runs[-1].append((x, y))
    return [run for run in runs if run]


def _axes(across: _Scale | None, up: _Scale, x_label: str, y_label: str) -> list[str]:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - (_RIGHT if across else 20)
    drawn = []
    for value in up.ticks():
        y = up(value)
        drawn.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        drawn.append(_text(_LEFT - 8, y + 4, number_text(value), anchor="end"))
    drawn.append(f'<line class="axis" x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')
    for value in across.ticks() if across else ():
        drawn.append(_text(across(value), bottom + 18, number_text(value), anchor="middle"))  # type: ignore[misc]
    drawn.append(_text((_LEFT + right) / 2, HEIGHT - 4, x_label, anchor="middle"))
    middle = (_TOP + bottom) / 2
    drawn.append(
        f'<text x="12" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 12 {middle:.1f})">'
        f"{escape(y_label)}</text>"
    )
    return drawn


def _end_labels(ends: list[tuple[float, float, int, str]]) -> list[str]:
    """Draw each name at the end of its line, moved down if it would overlap another name."""
    drawn = []
    lowest = -math.inf
    for y, x, number, name in sorted(ends):
        lowest = max(y + 4, lowest + _LABEL_GAP)
        drawn.append(f'<text class="t{number % 8}" x="{x + 8:.1f}" y="{lowest:.1f}">{escape(name)}</text>')
    return drawn


def _text(x: float, y: float, text: str, *, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _frame(title: str, drawn: Sequence[str]) -> str:
    body = "\n".join(drawn)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg">\n'
        f"<title>{escape(title)}</title>\n{body}\n</svg>"
    )
