"""A user checks what fits, creates a hold, sees it on the node, extends it and ends it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visitor

pytestmark = pytest.mark.needs("chromium")


def test_hold_is_created_extended_and_ended(visitor: Visitor) -> None:
    page = visitor.open("/what-if/?cpu=1&memory=1Gi&milli=500&gpumem=1024")
    page.get_by_role("button", name="Hold this capacity…").click()
    dialog = page.locator("dialog#act")
    dialog.get_by_label("Duration").select_option("600")
    dialog.get_by_label("Note").fill("release 17")
    dialog.get_by_role("button", name="Hold capacity").click()
    page.wait_for_url(re.compile(r".*/holds/h-.*"))
    expect(page.get_by_role("heading", name="release 17")).to_be_visible()
    address, reservations = page.url, page.locator("#reservations")
    expect(reservations).to_contain_text("500 ‰")

    reservations.locator("td a").first.click()
    page.get_by_role("link", name="GPU", exact=True).click()
    expect(page.locator("td.holders", has_text="reserved for default/what-if")).to_contain_text("500 ‰")
    expect(page.locator(".slices > .held-capacity").first).to_be_visible()

    page.goto(address)
    page.get_by_role("button", name="Extend…").click()
    dialog.get_by_label("Duration").select_option("3600")
    dialog.get_by_label("Reason").fill("the release is late")
    dialog.get_by_role("button", name="Extend").click()
    expect(page.locator("#facts")).to_contain_text(re.compile("Until.*in (59m|1h)", re.DOTALL))
    page.get_by_role("button", name="Cancel hold…").click()
    dialog.get_by_label("Reason").fill("not today")
    dialog.get_by_role("button", name="Cancel hold").click()
    expect(page.locator("#facts")).to_contain_text("not today")
    expect(reservations).to_contain_text("no longer reserved")


def test_unplaceable_manifest_cannot_be_held(visitor: Visitor) -> None:
    page = visitor.open("/what-if/?cpu=9999")
    expect(page.locator("#result")).to_contain_text("9999")
    expect(page.get_by_role("button", name="Hold this capacity…")).to_have_count(0)
    page = visitor.open("/what-if/?cpu=1&drain=k1-0")
    expect(page.locator("#sentence")).to_be_visible()
    expect(page.get_by_role("button", name="Hold this capacity…")).to_have_count(0)
