"""A fleet of over a thousand nodes is a heat map, used by pointer and keys, and can be switched to tiles."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Console, Visitor

pytestmark = pytest.mark.needs("chromium")

NODES = 1523
SETUP = f"""
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import import_cluster
from tests.builders import a_node
nodes = (a_node(f"node-{{n:04}}").labelled({{"hetsched.io/pool": f"pool-{{n % 7}}"}}) for n in range({NODES}))
content = ClusterContent(nodes=tuple(node.build() for node in nodes))
import_cluster(content, name="large", actor=SYSTEM)
"""
CORDON = """
from hetsched.inventory.actions import cordon
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import SYSTEM
cordon(Cluster.objects.get(name="large"), "node-0007", actor=SYSTEM, reason="work")
"""


def test_large_fleet_is_a_heat_map(visitor: Visitor, console: Console) -> None:
    console.run(SETUP)
    page = visitor.open("/?cluster=large")
    canvas, readout = page.locator("#grid canvas"), page.locator("#readout")
    expect(canvas).to_have_attribute("aria-label", f"Heat map: {NODES:,} nodes, coloured by CPU")
    expect(page.locator("#sizes [value=heat]")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#live")).to_have_text("live")
    # Pools are in the order of their names and nodes likewise: the first pool is node-0000, node-0007, …
    canvas.focus()
    expect(readout).to_contain_text("node-0000 · amd64 · pool-0 · ready · CPU 0 %")
    page.keyboard.press("ArrowRight")
    expect(readout).to_contain_text("node-0007 · amd64 · pool-0 · ready")
    console.run(CORDON)
    expect(readout).to_contain_text("node-0007 · amd64 · pool-0 · cordoned")
    page.fill("#find", "pool-3")
    page.fill("#find", "absent")
    expect(page.locator("#grid-hidden")).to_be_visible()
    page.click("#find-clear")
    page.select_option("#measures select", "state")
    expect(page.locator("#legend-heat")).to_contain_text("cordoned")
    page.select_option("#measures select", "balance")
    expect(page.locator("#legend-heat")).to_contain_text("unbalanced")
    box = page.locator(".heat-cursor").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_url("**/nodes/node-0007/?cluster=large")
    page.go_back()
    page.locator("#grid canvas").focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.wait_for_url("**/nodes/node-1518/?cluster=large")


def test_switch_to_tiles_is_remembered(visitor: Visitor, console: Console) -> None:
    console.run(SETUP)
    page = visitor.open("/?cluster=large")
    page.click("#sizes [value=tiles]")
    expect(page.locator("#grid .node")).to_have_count(NODES)
    expect(page.locator("#grid .node b").first).to_have_text("node-0000")
    page.reload()
    expect(page.locator("#sizes [value=tiles]")).to_have_attribute("aria-pressed", "true")
