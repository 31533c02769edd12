"""The table of headroom stands on the first screen, follows what is placed, and its figures open what-ifs."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visitor

pytestmark = pytest.mark.needs("chromium")


def test_pools_down_shapes_across(visitor: Visitor) -> None:
    page = visitor.open("/")
    table = page.locator("#headroom table")
    expect(table.locator("tbody th")).to_have_count(13)
    pools = table.locator("tbody th").all_inner_texts()
    assert [pool for pool in pools if pool.startswith("riscv")] == ["riscv-edge", "riscv-server", "riscv-vector"]
    cell = table.locator("tbody tr", has_text="x86-general").locator("td a").first
    cell.hover()
    expect(page.locator(".headroom-note")).to_contain_text("x86-general now")
    count = int(cell.inner_text())
    cell.click()
    page.wait_for_url(re.compile(r".*/what-if/.*"))
    expect(page.locator("#result")).to_contain_text("fits on" if count else "0 of")


def test_a_row_of_zeroes_says_why(visitor: Visitor) -> None:
    page = visitor.open("/")
    none = page.locator("#headroom td a.none").first
    none.focus()
    expect(page.locator(".headroom-note")).to_contain_text("none fits in")
