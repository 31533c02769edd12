"""A fleet of over a thousand nodes is drawn small, stays readable by pointing, and can be made large."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Console, Visitor

pytestmark = pytest.mark.needs("chromium")

NODES = 1523
SETUP = f"""
from hetsched.contracts.cluster import ClusterContent
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import import_cluster
from tests.builders import a_node
nodes = (a_node(f"node-{{n:04}}").labelled({{"hetsched.io/pool": f"pool-{{n % 7}}"}}) for n in range({NODES}))
content = ClusterContent(nodes=tuple(node.build() for node in nodes))
import_cluster(content, name="large", actor=SYSTEM)
"""


def test_tiles_follow_the_size_of_the_fleet(visitor: Visitor, console: Console) -> None:
    console.run(SETUP)
    page = visitor.open("/?cluster=large")
    grid = page.locator("#grid")
    expect(grid.locator(".node")).to_have_count(NODES)
    expect(grid).to_have_class("node-grid dense")
    expect(page.locator("#sizes [value=dense]")).to_have_attribute("aria-pressed", "true")
    page.locator("[data-name=node-0007]").hover()
    expect(page.locator("#readout")).to_contain_text("node-0007 · amd64 · pool-0 · ready · CPU 0 %")
    page.click("#sizes [value=tiles]")
    expect(grid).to_have_class("node-grid")
    expect(grid.locator(".node b").first).to_have_text("node-0000")
    page.reload()
    expect(page.locator("#sizes [value=tiles]")).to_have_attribute("aria-pressed", "true")
