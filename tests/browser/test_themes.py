"""Light, dark or system theme; the choice is kept and the other theme never flashes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visitor

pytestmark = pytest.mark.needs("chromium")

LIGHT, DARK = "rgb(244, 246, 248)", "rgb(17, 21, 27)"


def ground(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_system_theme_applies_until_the_user_chooses(visit: Callable[..., Visitor]) -> None:
    page = visit(color_scheme="dark").open("/policies/")
    assert ground(page) == DARK
    page.locator(".menu", has=page.locator("#theme")).locator("summary").click()
    page.click("#theme [value=light]")
    assert ground(page) == LIGHT
    page.reload()
    assert ground(page) == LIGHT
    expect(page.locator("#theme [value=light]")).to_have_attribute("aria-pressed", "true")
    page.locator(".menu", has=page.locator("#theme")).locator("summary").click()
    page.click("#theme [value=system]")
    assert ground(page) == DARK


def test_reduced_motion_disables_animations(visit: Callable[..., Visitor]) -> None:
    page = visit(reduced_motion="reduce").open("/")
    expect(page.locator(".node").first).to_be_visible()
    moving = page.evaluate(
        """() => [...document.querySelectorAll("*")].filter((e) => {
            const style = getComputedStyle(e);
            return style.animationName !== "none" || style.transitionDuration !== "0s";
        }).length"""
    )
    assert moving == 0
