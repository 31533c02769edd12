"""An operator finds problems, acts with a reason, and finds both in the audit trail."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Console, Visitor

pytestmark = pytest.mark.needs("chromium")


def confirm(page: Page, reason: str) -> None:
    """Enter a reason in the dialog and confirm; wait for the success message."""
    page.fill("dialog[open] [name=reason]", reason)
    page.click("dialog[open] [data-confirm]")
    expect(page.locator("dialog[open]")).to_have_count(0)


def test_problem_leads_to_an_action_and_the_audit_trail(visitor: Visitor) -> None:
    page = visitor.open("/clusters/")
    problem = page.locator("#problems li", has_text="nodes of demo are not ready or not schedulable")
    problem.get_by_role("link", name="show nodes").click()
    # The filter shows only these nodes; the neighbour epyc-1 is cordoned for a repair.
    expect(page.locator("#rows tbody tr").first).to_contain_text(re.compile("not ready|cordoned"))
    page = visitor.open("/nodes/epyc-1/")
    page.get_by_role("button", name="Cordon").click()
    expect(page.locator("dialog[open] #act-text")).to_contain_text(
        "The scheduler does not place new pods here until the node is uncordoned"
    )
    page.click("dialog[open] [data-confirm]")
    expect(page.locator("dialog[open] [role=alert]")).to_contain_text("Enter a reason")
    confirm(page, "Fan 2 is loud, vendor comes at 14:00")
    expect(page.locator("#head")).to_contain_text("cordoned")
    expect(page.locator("#notes")).to_contain_text("epyc-1 is cordoned.")
    page = visitor.open("/audit/?q=action%3Dnode.cordon")
    row = page.locator("#rows tbody tr", has_text="epyc-1").first
    expect(row).to_contain_text("Fan 2 is loud, vendor comes at 14:00")
    row.get_by_role("link", name="demo/epyc-1").click()
    page.get_by_role("button", name="Uncordon").click()
    confirm(page, "repaired")
    expect(page.locator("#head")).not_to_contain_text("cordoned")


def test_gpu_maintenance_is_started_and_ended(visitor: Visitor) -> None:
    page = visitor.open("/nodes/a100-1/gpu/")
    page.get_by_role("button", name="Start maintenance…").first.click()
    page.select_option("dialog[open] [name=until]", index=0)
    confirm(page, "new fan")
    expect(page.locator("#tab .chip.wait", has_text="in maintenance")).to_contain_text("in maintenance, ends in ")
    expect(page.locator("#head")).to_contain_text("1 of 8 GPUs do not accept new pods.")
    fleet = visitor.open("/")
    expect(fleet.locator("#maintained")).to_contain_text("1 of 48 GPUs in maintenance, ending in ")
    expect(fleet.locator("#maintained")).to_have_attribute("href", re.compile("/nodes/a100-1/"))
    expect(fleet.locator("[data-name=a100-1]")).to_have_attribute(
        "aria-label", re.compile("1 of 8 GPUs in maintenance")
    )
    figures = fleet.locator(".node .measure:has(.bar.gpu) .figure").all_inner_texts()
    assert all(int(figure.split()[0]) <= 100 for figure in figures), figures
    page = visitor.open("/nodes/a100-1/gpu/")
    page.get_by_role("button", name="End maintenance").click()
    confirm(page, "done")
    expect(page.locator("#tab")).not_to_contain_text("in maintenance, ends")


def test_concurrent_change_is_shown_and_the_form_is_reloaded(visitor: Visitor) -> None:
    visitor.expected.append("412")
    page = visitor.open("/nodes/epyc-2/")
    page.get_by_role("button", name="Cordon").click()
    page.evaluate(
        """async () => {
            const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
            const headers = {"Content-Type": "application/json", "X-CSRFToken": token, "If-Match": "*"};
            const body = JSON.stringify({action: "cordon", reason: "somebody else"});
            await fetch("/api/v1/nodes/epyc-2/actions/?cluster=demo", {method: "POST", headers, body});
        }"""
    )
    page.fill("dialog[open] [name=reason]", "me too")
    page.click("dialog[open] [data-confirm]")
    expect(page.locator("dialog[open] [role=alert]")).to_contain_text("changed")
    page.click("dialog[open] [data-reload]")
    page.get_by_role("button", name="Uncordon").click()
    confirm(page, "back")


def test_several_waiting_workloads_are_cancelled_at_once(visitor: Visitor) -> None:
    page = visitor.open("/queue/")
    for name in ("giant-a", "giant-b"):
        visitor.submit(name, nodeSelector={"kubernetes.io/hostname": "no-such-node"})
    for name in ("giant-a", "giant-b"):
        visitor.decision_of(name)  # a decision that arrives while the dialog is open would change what is cancelled
    page = visitor.open("/queue/?q=pod%7Egiant")
    expect(page.locator("#rows tbody tr")).to_have_count(2)
    page.check("input[data-pick-all]")
    expect(page.locator("#picked")).to_contain_text("Selected workloads: 2")
    page.click("#picked [data-bulk=cancel]")
    expect(page.locator("dialog[open] #act-text")).to_contain_text("Pods: 2")
    confirm(page, "sent by mistake")
    expect(page.locator("#rows")).to_contain_text("No pending pods match the filter.")


def test_token_is_shown_once_and_revoked(visitor: Visitor) -> None:
    page = visitor.open("/tokens/")
    page.click("#create")
    page.fill("dialog[open] [name=name]", "CI of payments")
    page.select_option("dialog[open] [name=role]", "submitter")
    confirm(page, "new pipeline")
    expect(page.locator("#plaintext")).to_have_value(re.compile("^hs_[0-9a-f]{64}$"))
    plaintext = page.locator("#plaintext").input_value()
    page.get_by_role("link", name="Close").click()
    row = page.locator("#rows tbody tr", has_text="CI of payments")
    expect(row).to_contain_text(f"{plaintext[:8]}…{plaintext[-4:]}")
    assert plaintext not in page.content()
    row.get_by_role("button", name="Revoke").click()
    confirm(page, "test is over")
    expect(page.locator("#rows")).not_to_contain_text("CI of payments")


def maintain(card: str, until: str) -> str:
    """Return code that starts the maintenance of a GPU of a100-1, or ends it if `until` is None."""
    return (
        "from datetime import timedelta\n"
        "from django.utils import timezone\n"
        "from hetsched.contracts.times import rfc3339\n"
        "from hetsched.inventory.maintenance import set_maintenance\n"
        "from hetsched.inventory.models import Cluster\n"
        "from hetsched.journal.audit import SYSTEM\n"
        "demo = Cluster.objects.get(name='demo')\n"
        f"set_maintenance(demo, 'a100-1', 'card', {card!r}, {until}, actor=SYSTEM, reason='fan')\n"
    )


def test_open_fleet_page_follows_changes_of_maintenance(visitor: Visitor, console: Console) -> None:
    later = "rfc3339(timezone.now() + timedelta(hours=2))"
    chip = visitor.open("/").locator("#maintained")
    expect(chip).to_be_hidden()
    console.run(maintain("0", later))
    expect(chip).to_contain_text("1 of 48 GPUs in maintenance")
    console.run(maintain("1", later))
    expect(chip).to_contain_text("2 of 48 GPUs in maintenance")
    console.run(maintain("0", "None"))
    expect(chip).to_contain_text("1 of 48 GPUs in maintenance")
    console.run(maintain("1", "None"))
    expect(chip).to_be_hidden()
