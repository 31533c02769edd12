"""From a decision on to every node it looked at, and from a refused workload on to a what-if."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visitor

pytestmark = pytest.mark.needs("chromium")


def test_every_node_is_shown_with_scores_or_a_reason(visitor: Visitor) -> None:
    page = visitor.open("/")
    visitor.submit("for-riscv", nodeSelector={"kubernetes.io/arch": "riscv64"})
    visitor.open(visitor.decision_of("for-riscv"))
    page.click("#matrix")
    # 14 RISC-V nodes, one of which is not ready; 35 are refused.
    expect(page.locator("#matrix-shown")).to_contain_text("13 of 48 are feasible")
    expect(page.locator("#matrix-shown")).to_contain_text("Refused nodes: 35")
    assert page.locator("#matrix-shown tbody tr").count() == 48


def test_a_refused_workload_leads_to_a_filled_in_what_if(visitor: Visitor) -> None:
    page = visitor.open("/")
    visitor.submit("nowhere", nodeSelector={"kubernetes.io/hostname": "no-such-node"})
    visitor.open(visitor.decision_of("nowhere"))
    page.get_by_text("its workload as it is now").click()
    expect(page.locator(".funnel")).to_contain_text("node-affinity 0")
    page.get_by_text("Ask again as a what-if").click()
    expect(page.locator("#sentence")).to_contain_text("default/nowhere never fits")


def test_a_refusal_tells_the_smallest_change_that_would_have_done(visitor: Visitor) -> None:
    page = visitor.open("/")
    visitor.submit("no-disk", nodeSelector={"disk": "ssd"})
    visitor.open(visitor.decision_of("no-disk"))
    expect(page.locator(".nearest")).to_contain_text("drop nodeSelector disk=ssd")
    page.get_by_text("its workload as it is now").click()
    expect(page.locator(".nearest")).to_contain_text("drop nodeSelector disk=ssd")


def test_a_placement_tells_by_how_much_its_node_won(visitor: Visitor) -> None:
    page = visitor.open("/")
    visitor.submit("won")
    visitor.open(visitor.decision_of("won"))
    expect(page.locator("[data-further]")).to_contain_text("What would change the winner")
