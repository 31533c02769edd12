"""Formatting of amounts: rounding and units."""

from __future__ import annotations

import pytest

from web.pages.amounts import amount_words, duration, mib_words, percent, use


@pytest.mark.parametrize(
    ("resource", "amount", "words"),
    [
        ("cpu", 500, "0.5"),
        ("cpu", 32000, "32"),
        ("memory", 2**30, "1 GiB"),
        ("memory", 132_000_000_000, "122.9 GiB"),  # 132e9 / 2^30 = 122.93
        ("memory", 0, "0 B"),
        ("ephemeral-storage", 3 * 2**39, "1.5 TiB"),
        ("nvidia.com/gpu", 8, "8"),
        ("hetsched.io/network-mbps", 25000, "25,000 Mbit/s"),
    ],
)
def test_amounts(resource: str, amount: int, words: str) -> None:
    assert amount_words(resource, amount) == words


def test_unknown_amount_is_shown_as_unknown() -> None:
    assert mib_words(None) is None
    assert percent(None) == "–"
    assert use("cpu", 0, 0)["ratio"] is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.4, "< 1 s"), (0.9, "< 1 s"), (1, "1 s"), (59.2, "1 min"), (299.4, "5 min"), (3599.9, "1 h"),
        (7199, "2 h"), (3661, "1 h 2 min"), (86_399, "1 d"), (90_061, "1 d 2 h"), (0.1 + 0.2 + 59.7, "1 min"),
    ],
)  # fmt: skip
def test_time_spans_are_rounded_up(seconds: float, words: str) -> None:
    assert duration(seconds) == words
