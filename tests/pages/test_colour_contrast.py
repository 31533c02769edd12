"""Colour contrast of every palette in both themes.

WCAG 2.2 AA (1.4.3 and 1.4.11): text has at least 4.5:1 and marks 3:1 on their background; the palette of high contrast
has 7:1 and 4.5:1.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOKENS = Path(__file__).resolve().parents[2] / "static/css/tokens.css"
PALETTE = re.compile(r':root\[data-palette="([a-z]+)"\] \{(.*?)\n\}', re.DOTALL)
PAIR = re.compile(r"--([a-z0-9-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)")
TEXT = [
    *((ink, ground) for ink in ("text", "muted", "accent") for ground in ("page", "surface", "sunken")),
    ("on-accent", "accent"), ("accent", "accent-soft"), ("text", "accent-soft"),
    *((tone, f"{tone}-soft") for tone in ("good", "wait", "bad")),
    *((tone, "surface") for tone in ("good", "wait", "bad")),
    *(("text", f"{tone}-soft") for tone in ("good", "wait", "bad")),
]  # fmt: skip
MARKS = [
    *((mark, "surface") for mark in ("cpu", "memory", "gpu", "edge", "family-riscv", "family-arm", "family-x86")),
    *((mark, "sunken") for mark in ("cpu", "memory", "gpu")),
    ("family-unknown", "surface"),
]  # fmt: skip


def palettes() -> dict[str, str]:
    """Return the declarations of each palette; the default one has no name in the style sheet."""
    text = TOKENS.read_text()
    return {"default": PALETTE.sub("", text), **dict(PALETTE.findall(text))}


def colours(palette: str, theme: int) -> dict[str, str]:
    found = palettes()
    rows = PAIR.findall(found["default"]) + (PAIR.findall(found[palette]) if palette != "default" else [])
    return {name: pair[theme] for name, *pair in rows}


def luminance(colour: str) -> float:
    """Return the relative luminance of #rrggbb, as WCAG defines it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_black_on_white_is_21() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


def test_high_contrast_palette_exists() -> None:
    assert set(palettes()) == {"default", "contrast"}
    assert PAIR.findall(palettes()["contrast"]) != PAIR.findall(palettes()["default"])


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("palette", "least", "pairs"),
    [("default", 4.5, TEXT), ("default", 3.0, MARKS), ("contrast", 7.0, TEXT), ("contrast", 4.5, MARKS)],
    ids=["text", "marks", "text-of-high-contrast", "marks-of-high-contrast"],
)
def test_pairs_reach_the_least_contrast(palette: str, theme: int, least: float, pairs: list[tuple[str, str]]) -> None:
    named = colours(palette, theme)
    found = {pair: round(contrast(named[pair[0]], named[pair[1]]), 2) for pair in pairs}
    assert {pair: ratio for pair, ratio in found.items() if ratio < least} == {}
