"""The console works without a mouse, and every control has an accessible name."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visitor

pytestmark = pytest.mark.needs("chromium")

ADDRESSES = (
    "/", "/nodes/", "/nodes/k1-0/", "/nodes/a100-0/gpu/", "/workloads/", "/decisions/", "/what-if/", "/policies/",
)  # fmt: skip
NAMELESS = """() => [...document.querySelectorAll("a, button, input, select, textarea, summary")]
    .filter((e) => e.type !== "hidden" && e.checkVisibility())
    .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length))
    .map((e) => e.outerHTML)"""


def test_g_and_a_letter_open_a_page(visitor: Visitor) -> None:
    page = visitor.open("/")
    for key, place in {
        "n": "/nodes/",
        "j": "/workloads/",
        "d": "/decisions/",
        "w": "/what-if/",
        "p": "/policies/",
    }.items():
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.wait_for_url(f"**{place}")


def test_slash_opens_search_except_while_typing(visitor: Visitor) -> None:
    page = visitor.open("/")
    page.keyboard.press("/")
    box = page.locator("#search-for")
    expect(box).to_be_focused()
    page.keyboard.type("gn?k1-0")
    assert box.input_value() == "gn?k1-0"
    expect(page.locator("#keys")).to_be_hidden()
    box.fill("k1-0")
    expect(page.locator("#search-found [role=option]").first).to_contain_text("k1-0")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#search-found [aria-selected=true]")).to_contain_text("k1-0")
    page.keyboard.press("Enter")
    page.wait_for_url("**/nodes/k1-0/")
    page.keyboard.press("Control+k")
    expect(box).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#search")).to_be_hidden()


def test_filter_key_and_row_keys(visitor: Visitor) -> None:
    page = visitor.open("/nodes/")
    page.keyboard.press("f")
    box = page.locator("#filter")
    expect(box).to_be_focused()
    page.keyboard.type("sta")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")  # selects the field and continues with its values
    expect(box).to_have_value("state=")
    expect(page.locator("#filter-list [role=option]")).to_have_count(4)
    page.keyboard.type("cor")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    expect(box).to_have_value("state=cordoned")
    box.fill("pool=ris")
    expect(page.locator("#filter-list [role=option]").first).to_contain_text("riscv")  # requested from the server
    box.fill("isa>=rv64gcv")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=isa*")
    page.keyboard.press("j")
    expect(page.locator("tbody tr").first.locator("a").first).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_url("**/nodes/k1-0/")


def test_menu_lists_all_sections_at_every_width(visitor: Visitor) -> None:
    page = visitor.open("/nodes/")
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 844})
        menu = page.locator("#places")
        menu.locator("summary").focus()
        page.keyboard.press("Enter")
        expect(menu.get_by_role("link", name="Balance")).to_be_visible()
        expect(menu.locator("a[aria-current]")).to_have_text("Nodesg n")
        page.keyboard.press("Escape")
        expect(menu.locator("summary")).to_be_focused()
        expect(menu.get_by_role("link", name="Balance")).to_be_hidden()


def test_question_mark_lists_the_keys(visitor: Visitor) -> None:
    page = visitor.open("/nodes/")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()


def test_arrows_walk_the_grid_from_one_tab_stop(visitor: Visitor) -> None:
    page = visitor.open("/")
    assert page.locator(".node[tabindex='0']").count() == 1
    page.locator("[data-name=vf2-0]").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-name=vf2-1]")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.locator("[data-name=vf2-3]")).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("[data-name=vf2-0]")).to_be_focused()
    assert page.locator(".node[tabindex='0']").get_attribute("data-name") == "vf2-0"
    page.keyboard.press("Enter")
    page.wait_for_url("**/nodes/vf2-0/")


def test_every_control_has_a_name_and_every_page_one_heading(visitor: Visitor) -> None:
    for address in ADDRESSES:
        page = visitor.open(address)
        assert page.evaluate(NAMELESS) == [], address
        assert page.locator("h1").count() == 1, address
