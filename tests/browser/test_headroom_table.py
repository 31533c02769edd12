"""The headroom table is on the first screen, follows placements, and its numbers open what-ifs."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from playwright.sync_api import Route, expect

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


def test_headroom_of_zero_has_a_reason(visitor: Visitor) -> None:
    def full(route: Route) -> None:
        answer = route.fetch()
        document = answer.json()
        document["shapes"][0]["counts"][0] = 0
        document["shapes"][0]["reasons"][0] = "the node runs rv64, but the pod requires amd64"
        route.fulfill(response=answer, json=document)

    visitor.page.route("**/api/v1/metrics/headroom/**", full)
    page = visitor.open("/")
    none = page.locator("#headroom td a.none").first
    none.focus()
    expect(page.locator(".headroom-note")).to_contain_text("no more copies fit in")
    expect(page.locator(".headroom-note")).to_contain_text("the pod requires amd64")


def test_copies_that_run_by_emulation_are_marked(visitor: Visitor) -> None:
    def emulated(route: Route) -> None:
        answer = route.fetch()
        document = answer.json()
        for shape in document["shapes"]:
            shape["emulatedCounts"] = [0 for _ in shape["counts"]]
        shape = document["shapes"][0]
        shape["counts"][0], shape["exact"][0], shape["emulatedCounts"][0] = 33, True, 30
        route.fulfill(response=answer, json=document)

    visitor.page.route("**/api/v1/metrics/headroom/**", emulated)
    page = visitor.open("/")
    marked = page.locator("#headroom td a", has_text="*")
    expect(marked).to_have_text(["33*"])
    expect(marked).to_have_attribute("aria-label", re.compile(r"including 30 with emulation \(slower than native\)"))


@pytest.mark.parametrize("width", [800, 1120, 1440])
def test_column_headings_are_not_cut(visitor: Visitor, width: int) -> None:
    visitor.page.set_viewport_size({"width": width, "height": 900})
    page = visitor.open("/")
    lines = page.locator("#headroom thead a > span")
    expect(lines.first).to_have_text(re.compile(r"\d+m? CPU"))
    sizes = lines.evaluate_all("spans => spans.map(span => [span.textContent, span.scrollWidth, span.clientWidth])")
    assert [text for text, whole, shown in sizes if whole > shown] == []


def test_column_headings_are_apart(visitor: Visitor) -> None:
    def large(route: Route) -> None:
        answer = route.fetch()
        document = answer.json()
        for shape in document["shapes"]:
            shape.update(cpu="16", memory="128Gi", milli=0, cards=4)
        route.fulfill(response=answer, json=document)

    visitor.page.route("**/api/v1/metrics/headroom/**", large)
    page = visitor.open("/")
    heads = page.locator("#headroom thead a")
    expect(heads.first).to_have_text("16 CPU128G4×GPU")
    edges = heads.evaluate_all(
        """links => links.map(link => {
            const range = document.createRange();
            const boxes = [...link.children].map(line => {
                range.selectNodeContents(line);
                return range.getBoundingClientRect();
            });
            return [Math.min(...boxes.map(box => box.left)), Math.max(...boxes.map(box => box.right))];
        })"""
    )
    assert len(edges) > 1
    assert min(right[0] - left[1] for left, right in pairwise(edges)) >= 4
