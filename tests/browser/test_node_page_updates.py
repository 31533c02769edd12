"""A node's page is updated while it is open, and its tabs are addresses."""

from __future__ import annotations

from contextlib import suppress

import pytest
from playwright.sync_api import APIResponse, Route, TimeoutError, expect

from tests.browser.conftest import Visitor
from tests.system.processes import wait_until

pytestmark = pytest.mark.needs("chromium")


def test_pod_placed_on_the_node_appears(visitor: Visitor) -> None:
    page = visitor.open("/nodes/epyc-1/pods/")
    expect(page.locator("#live")).to_have_text("live")
    before = page.locator("#head").inner_text()
    visitor.submit("lands-here", nodeSelector={"kubernetes.io/hostname": "epyc-1"})
    expect(page.locator("#tab")).to_contain_text("default/lands-here")
    assert page.locator("#head").inner_text() != before


def test_tabs_are_addresses_and_keys(visitor: Visitor) -> None:
    page = visitor.open("/nodes/k1-0/")
    page.keyboard.press("]")
    page.wait_for_url("**/nodes/k1-0/isa/")
    expect(page.locator(".tabs [aria-current=page]")).to_have_text("ISA")
    page.keyboard.press("[")
    page.wait_for_url("**/nodes/k1-0/")


def test_bars_are_as_wide_as_their_figures(visitor: Visitor) -> None:
    page = visitor.open("/nodes/a100-0/gpu/")
    slices = page.locator(".slices > span")
    expect(slices.first).to_be_visible()
    widths = slices.evaluate_all(
        "(all) => all.map((e) => [e.offsetWidth / e.parentElement.offsetWidth, Number(e.dataset.ratio)])"
    )
    assert widths
    assert all(abs(shown - stated) < 0.02 for shown, stated in widths)


def test_list_rows_keep_their_position_while_pointed_at(visitor: Visitor) -> None:
    page = visitor.open("/workloads/")
    expect(page.locator("#live")).to_have_text("live")
    first = page.locator("#rows tbody tr").first
    first.hover()
    shown = first.inner_text()
    visitor.submit("not-yet")
    expect(page.locator("#held")).to_contain_text("updates")
    assert page.locator("#rows tbody tr").first.inner_text().split("\t")[0] == shown.split("\t")[0]
    page.locator("h1").hover()
    expect(page.locator("#rows")).to_contain_text("default/not-yet")
    expect(page.locator("#held")).to_have_count(0)


def test_rows_behind_a_list_are_counted_and_shown_on_request(visitor: Visitor) -> None:
    page = visitor.open("/workloads/")
    expect(page.locator("#live")).to_have_text("live")
    link = page.locator("#rows tbody a").first
    link.focus()
    visitor.submit("on-request")
    visitor.decision_of("on-request")
    # Other pods of this cluster may have changed the list before: the button shows the page as it was counted.
    rows, held = page.locator("#rows"), page.locator("#held")
    expect(held).to_be_visible()

    def shown_on_request() -> bool:
        with suppress(TimeoutError):  # an update may remove the button between the count and the click
            if held.count():
                held.click(timeout=2000)
        return "default/on-request" in rows.inner_text()

    wait_until(shown_on_request, what="the pod in the list")
    expect(held).to_have_count(0)


def test_button_over_the_list_stays_under_the_pointer(visitor: Visitor) -> None:
    """Regression: the pointer left the list for the button, which removed the button before its click."""
    page = visitor.open("/workloads/")
    expect(page.locator("#live")).to_have_text("live")
    page.locator("#rows tbody tr").first.hover()
    visitor.submit("under-the-button")
    held = page.locator("#held")
    expect(held).to_contain_text("updates")
    held.evaluate(
        """(button) => {
            const list = document.getElementById("rows").getBoundingClientRect();
            const top = Math.min(list.top + list.height / 2, innerHeight - 60);
            Object.assign(button.style, {top: `${top}px`, bottom: "auto"});
            button.dataset.moved = "";
        }"""
    )
    held.hover()
    page.wait_for_timeout(500)
    expect(page.locator("#held[data-moved]")).to_be_visible()
    held.click()
    expect(page.locator("#held[data-moved]")).to_have_count(0)
    # Another pod of the cluster may have been the counted update: the list shows the rest without the pointer.
    page.locator("h1").hover()
    expect(page.locator("#rows")).to_contain_text("default/under-the-button")


def test_earlier_answer_never_replaces_a_later_page(visitor: Visitor) -> None:
    page = visitor.open("/workloads/")
    expect(page.locator("#live")).to_have_text("live")
    waiting: list[tuple[Route, APIResponse]] = []

    def hold_first(route: Route) -> None:
        if waiting:
            route.continue_()
        else:
            waiting.append((route, route.fetch()))

    def is_waiting() -> bool:
        page.wait_for_timeout(100)
        return bool(waiting)

    page.route(f"{visitor.console.url}/workloads/", hold_first)
    visitor.submit("earlier")
    wait_until(is_waiting, what="the request of the page")
    visitor.submit("later")
    visitor.decision_of("later")
    page.wait_for_timeout(4000)  # time for a second request, which comes after the first one
    route, response = waiting[0]
    route.fulfill(response=response)
    page.wait_for_timeout(1000)
    expect(page.locator("#rows")).to_contain_text("default/later")


def test_update_without_a_revision_is_not_counted(visitor: Visitor) -> None:
    """Regression: a part that changed without a revision was announced as "Show 0 updates"."""

    def changed_without_a_revision(route: Route) -> None:
        response = route.fetch()
        body = response.text()
        if route.request.is_navigation_request():
            body = body.replace('<main id="content"', '<main id="content" data-every="1"')
        else:
            body = body.replace('id="rows"', 'id="rows" data-changed')
        route.fulfill(response=response, body=body)

    visitor.expected.append("WebSocket")  # Chromium denies sockets to a page that the test answers
    visitor.page.route("**/workloads/", changed_without_a_revision)
    page = visitor.open("/workloads/")
    page.locator("#rows tbody tr").first.hover()
    expect(page.locator("#held")).to_have_text("Show updates")
