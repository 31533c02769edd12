"""The console works without a mouse, and every control has a name."""

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


def test_g_and_a_letter_go_to_a_page(visitor: Visitor) -> None:
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


def test_slash_finds_and_typing_is_left_alone(visitor: Visitor) -> None:
    page = visitor.open("/")
    page.keyboard.press("/")
    expect(page.locator("#find")).to_be_focused()
    page.keyboard.type("gn?")
    assert page.locator("#find").input_value() == "gn?"
    expect(page.locator("#keys")).to_be_hidden()


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
