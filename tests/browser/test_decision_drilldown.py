"""Links from a decision to every considered node, and from a rejected workload to a what-if."""

from __future__ import annotations

import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import Visitor

pytestmark = pytest.mark.needs("chromium")


def test_every_node_is_shown_with_scores_or_a_reason(visitor: Visitor) -> None:
    page = visitor.open("/")
    visitor.submit("for-riscv", nodeSelector={"kubernetes.io/arch": "riscv64"})
    visitor.open(visitor.decision_of("for-riscv"))
    page.click("#matrix")
    # 14 RISC-V nodes, one of which is not ready; 35 are rejected.
    expect(page.locator("#matrix-shown [data-group=feasible]")).to_have_text("13 feasible")
    expect(page.locator("#matrix-shown [data-group='']")).to_have_text("48 all nodes")
    assert page.locator("#matrix-shown tbody tr").count() == 48


def test_rejected_workload_links_to_a_filled_what_if(visitor: Visitor) -> None:
    page = visitor.open("/")
    visitor.submit("nowhere", nodeSelector={"kubernetes.io/hostname": "no-such-node"})
    visitor.open(visitor.decision_of("nowhere"))
    page.get_by_text("current state of the workload").click()
    expect(page.locator(".funnel")).to_contain_text("node-affinity 0")
    page.get_by_text("Simulate as a what-if").click()
    expect(page.locator("#sentence")).to_contain_text("default/nowhere never fits")


def test_decision_is_recomputed_also_with_another_policy(visitor: Visitor) -> None:
    page = visitor.open("/")
    visitor.submit("twice")
    visitor.open(visitor.decision_of("twice"))
    page.get_by_role("button", name="Run again").click()
    expect(page.locator("#again-shown")).to_contain_text("Same result")
    page.select_option("[data-again] select", "best-fit")
    page.get_by_role("button", name="Run again").click()
    expect(page.locator("#again-shown")).to_contain_text("Computed with best-fit v1")


def test_why_page_links_a_rejection_to_its_nearest_fit(visitor: Visitor) -> None:
    page = visitor.open("/")
    visitor.submit("wants-disk", nodeSelector={"disk": "nvme"})
    visitor.open(visitor.decision_of("wants-disk"))
    page.get_by_text("decision history of the pod").click()
    expect(page.locator("#live")).to_have_text("live")  # the page's scripts have run
    page.locator("[data-step=node-affinity]").click()
    expect(page.locator("#matrix tbody tr").first).to_contain_text("the node has no label disk=nvme")
    expect(page.locator("#time")).to_contain_text("in the queue")
    page.locator(".next-steps a").first.click()
    expect(page.locator("#sentence")).to_contain_text("default/wants-disk fits on")


@pytest.mark.parametrize(("verdict", "shown"), [("not-now", 0), ("never-fits", 1)])
def test_why_page_repeats_only_a_changed_verdict(visitor: Visitor, verdict: str, shown: int) -> None:
    def later(route: Route) -> None:
        answer = route.fetch()
        document = answer.json()
        document["verdict"] = "not-now"
        document["outlook"].update(verdict=verdict, summary="the current result")
        route.fulfill(response=answer, json=document)

    page = visitor.open("/")
    name = f"again-{verdict}"
    visitor.submit(name, nodeSelector={"disk": "nvme"})
    visitor.open(visitor.decision_of(name))
    page.route("**/api/v1/pods/*/why/?outlook=true", later)
    page.get_by_text("decision history of the pod").click()
    expect(page.locator("#next .next-steps")).to_be_visible()
    expect(page.locator("#next > p", has_text="the current result")).to_have_count(shown)


def test_rejection_shows_the_nearest_fit(visitor: Visitor) -> None:
    page = visitor.open("/")
    visitor.submit("no-disk", nodeSelector={"disk": "ssd"})
    visitor.open(visitor.decision_of("no-disk"))
    expect(page.locator(".nearest")).to_contain_text("remove nodeSelector disk=ssd")
    page.get_by_text("current state of the workload").click()
    expect(page.locator(".nearest")).to_contain_text("remove nodeSelector disk=ssd")


def test_placement_shows_the_margin_of_its_node(visitor: Visitor) -> None:
    page = visitor.open("/")
    visitor.submit("won")
    visitor.open(visitor.decision_of("won"))
    expect(page.locator("[data-further]")).to_contain_text("Tipping points")
