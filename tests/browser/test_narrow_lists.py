"""On a phone, the rows of lists are blocks with a labelled line for each cell, and nothing scrolls sideways."""

from __future__ import annotations

from secrets import token_hex

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visitor

pytestmark = pytest.mark.needs("chromium")
_OVERFLOW = "[...document.querySelectorAll('html, .table-wrap')].map(box => box.scrollWidth - box.clientWidth)"


def _open_with_a_pending_pod(visitor: Visitor) -> None:
    """Submit a pod that fits on no node, and wait for its decision, so that no list is empty."""
    visitor.open("/queue/")
    name = f"narrow-{token_hex(4)}"
    visitor.submit(name, nodeSelector={"pool": "none"})
    visitor.decision_of(name)


@pytest.mark.parametrize("address", ["/queue/", "/workloads/", "/nodes/", "/decisions/", "/audit/", "/policies/"])
def test_list_fits_a_narrow_screen(visitor: Visitor, address: str) -> None:
    _open_with_a_pending_pod(visitor)
    visitor.page.set_viewport_size({"width": 390, "height": 844})
    page = visitor.open(address)
    row = page.locator(".list tbody tr").first
    expect(row).to_be_visible()
    assert max(page.evaluate(_OVERFLOW)) == 0
    cell = row.locator("td:not(.blank, :has([data-pick]))").first
    label = cell.get_attribute("data-label")
    assert label
    assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == f'"{label}"'


def test_narrow_list_keeps_the_semantics_of_a_table(visitor: Visitor) -> None:
    _open_with_a_pending_pod(visitor)
    visitor.page.set_viewport_size({"width": 390, "height": 844})
    page = visitor.open("/workloads/")
    heads, row = page.locator(".list thead th"), page.locator(".list tbody tr").first
    expect(page.get_by_role("columnheader")).to_have_count(heads.count())
    expect(row.get_by_role("rowheader")).to_have_count(1)
    expect(row.get_by_role("cell")).to_have_count(heads.count() - 1)


def test_heads_of_narrow_list_are_named_as_sort_links(visitor: Visitor) -> None:
    _open_with_a_pending_pod(visitor)
    for width, label in ((390, '"Sort by"'), (1440, "none")):
        visitor.page.set_viewport_size({"width": width, "height": 844})
        heads = visitor.open("/queue/").locator(".list thead tr")
        assert heads.evaluate("row => getComputedStyle(row, '::before').content") == label
        expect(heads.get_by_role("link", name="Position")).to_be_visible()


def test_queue_rows_are_headed_by_their_pod(visitor: Visitor) -> None:
    _open_with_a_pending_pod(visitor)
    page = visitor.open("/queue/")
    expect(page.locator(".list tbody tr th[scope=row] a").first).to_contain_text("/")
