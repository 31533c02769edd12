"""The first screen shows the whole fleet and follows its changes."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visitor

pytestmark = pytest.mark.needs("chromium")


def test_fleet_is_visible_without_scrolling(visitor: Visitor) -> None:
    page = visitor.open("/")
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator(".node")).to_have_count(48)
    for selector in ("html", "#grid", ".fleet-feed"):
        assert page.locator(selector).evaluate("(e) => e.scrollHeight - e.clientHeight") == 0, selector


def test_new_submission_appears_without_reload(visitor: Visitor) -> None:
    page = visitor.open("/")
    expect(page.locator("#live")).to_have_text("live")
    running = int(page.locator("[data-count^=placed]").inner_text())
    visitor.submit("seen-live", nodeSelector={"kubernetes.io/hostname": "epyc-3"})
    expect(page.locator("#feed li").first).to_contain_text("default/seen-live")
    expect(page.locator("#feed li").first).to_contain_text("placed on epyc-3")
    expect(page.locator("[data-count^=placed]")).to_have_text(str(running + 1))


def test_tiles_keep_their_order_and_their_elements(visitor: Visitor) -> None:
    page = visitor.open("/")
    expect(page.locator("#live")).to_have_text("live")
    names = page.locator(".node").evaluate_all("(tiles) => tiles.map((tile) => tile.dataset.name)")
    tile = page.locator("[data-name=epyc-4]")
    tile.evaluate("(tile) => { tile.marked = true; }")
    before = tile.get_attribute("aria-label")
    visitor.submit("in-place", nodeSelector={"kubernetes.io/hostname": "epyc-4"})
    expect(tile).not_to_have_attribute("aria-label", before or "")
    assert tile.evaluate("(tile) => tile.marked") is True
    assert page.locator(".node").evaluate_all("(tiles) => tiles.map((tile) => tile.dataset.name)") == names


def test_filter_of_the_grid_is_in_the_address(visitor: Visitor) -> None:
    page = visitor.open("/?q=k1")
    expect(page.locator(".node:visible")).to_have_count(4)
    page.fill("#find", "no such node")
    expect(page.locator("#grid-hidden")).to_be_visible()
    assert "q=no+such+node" in page.url
    page.click("#find-clear")
    expect(page.locator(".node:visible")).to_have_count(48)
    assert "q=" not in page.url
