"""Tables that are wider than the screen are scrolled with the keyboard, and no other table is a tab stop."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visitor
from tests.system.processes import wait_until

pytestmark = pytest.mark.needs("chromium")


def _wait_for_scrolling(page: Page) -> None:
    """Wait until the focused box is scrolled to the right."""
    wait_until(lambda: page.evaluate("document.activeElement.scrollLeft") > 0, what="a scrolled table")


def test_table_is_a_named_tab_stop_only_if_it_scrolls(visitor: Visitor) -> None:
    visitor.page.set_viewport_size({"width": 390, "height": 844})
    page = visitor.open("/nodes/a100-0/gpu/")
    box = page.get_by_role("region", name="8 GPU devices")
    page.locator(".tabs a").last.focus()
    page.keyboard.press("Tab")
    expect(box).to_be_focused()
    expect(box).to_have_css("outline-style", "solid")
    page.keyboard.press("ArrowRight")
    _wait_for_scrolling(page)
    page.set_viewport_size({"width": 1440, "height": 900})
    expect(box).to_have_count(0)
    expect(page.locator(".table-wrap")).not_to_have_attribute("tabindex", "0")


def test_added_table_is_named_by_its_caption(visitor: Visitor) -> None:
    visitor.page.set_viewport_size({"width": 390, "height": 844})
    page = visitor.open("/what-if/?cpu=1&memory=1Gi")
    page.locator("#matrix-part > summary").click()
    expect(page.get_by_role("region", name="All nodes")).to_have_attribute("tabindex", "0")


def test_update_keeps_focus_and_scroll_position(visitor: Visitor) -> None:
    visitor.page.set_viewport_size({"width": 390, "height": 844})
    page = visitor.open("/balance/")
    expect(page.locator("#live")).to_have_text("live")
    page.get_by_role("region", name="Resources").focus()
    page.keyboard.press("ArrowRight")
    _wait_for_scrolling(page)
    page.evaluate("document.activeElement.dataset.before = ''")
    visitor.submit("changes-balance")
    expect(page.locator("[data-before]")).to_have_count(0)
    assert page.evaluate("document.activeElement.ariaLabel") == "Resources"
    _wait_for_scrolling(page)


def test_click_on_a_row_of_a_list_that_scrolls_does_not_hold_updates(visitor: Visitor) -> None:
    visitor.page.set_viewport_size({"width": 900, "height": 420})
    page = visitor.open("/workloads/")
    expect(page.locator("#live")).to_have_text("live")
    page.locator(".table-wrap td .muted").first.click()
    page.locator("h1").hover()
    visitor.submit("after-the-click")
    expect(page.get_by_text("after-the-click").first).to_be_visible()
    expect(page.locator("#held")).to_have_count(0)


def test_list_marks_rows_below_its_lower_edge(visitor: Visitor) -> None:
    page = visitor.open("/nodes/")
    box = page.locator(".table-wrap.tall")
    shadow = "box => getComputedStyle(box, '::after').opacity"
    wait_until(lambda: box.evaluate(shadow) == "1", what="the mark of the rows below")
    box.evaluate("box => box.scrollTo(0, box.scrollHeight)")
    wait_until(lambda: box.evaluate(shadow) == "0", what="the last row without a mark")
    page = visitor.open("/nodes/?q=name=k1-0")
    assert box.evaluate(shadow) == "0"
