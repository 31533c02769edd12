"""Relative times on pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

pytestmark = pytest.mark.needs("chromium")
DRAW = Path(__file__).resolve().parents[2] / "static" / "js" / "draw.js"


def test_future_times_are_rounded_up(browser: Browser) -> None:
    page = browser.new_page()
    page.set_content('<html lang="en"><main id="content"></main></html>')
    page.add_script_tag(type="module", content=f"{DRAW.read_text()}\nwindow.ago = ago;")
    page.wait_for_function("window.ago")
    written = "(seconds) => ago(new Date(1e12 + seconds * 1000).toISOString(), 1e12)"
    expected = {
        0.2: "in 1s", 59.5: "in 1m", 61: "in 61s", 299: "in 5m", 3 * 3600 + 3599: "in 4h", 25 * 3600: "in 25h",
        -59: "59s ago", -3599: "59m ago",
    }  # fmt: skip
    assert {seconds: page.evaluate(written, seconds) for seconds in expected} == expected
