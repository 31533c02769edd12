"""New nodes wait behind a counting button while the pointer is over the grid; otherwise they appear immediately."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Console, Visitor

pytestmark = pytest.mark.needs("chromium")


def with_nodes(count: int) -> str:
    return f"""
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import import_cluster
from tests.builders import a_node
nodes = tuple(a_node(f"here-{{n}}").build() for n in range({count}))
import_cluster(ClusterContent(nodes=nodes), name="moving", actor=SYSTEM)
"""


def test_new_nodes_appear_after_the_pointer_leaves(visitor: Visitor, console: Console) -> None:
    console.run(with_nodes(2))
    page = visitor.open("/?cluster=moving")
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#grid .node")).to_have_count(2)
    page.locator("[data-name=here-1]").hover()
    console.run(with_nodes(4))
    expect(page.locator("#updates")).to_contain_text("2 updated nodes")
    expect(page.locator("#grid .node")).to_have_count(2)
    page.click("#updates")
    expect(page.locator("#grid .node")).to_have_count(4)
    expect(page.locator("#updates")).to_be_hidden()
    page.locator("#feed-title").hover()
    console.run(with_nodes(5))
    expect(page.locator("#grid .node")).to_have_count(5)
