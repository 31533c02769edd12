"""A policy admin edits a draft, previews it, is blocked by a golden placement, and fixes the draft.

The admin then activates it with a reason and rolls it back, all without a mouse.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Console, Visitor

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.timeout(600)]

PASSWORD = "a long enough password"
# A job that needs vectors, with a golden placement on its node; and a second user who may change policies.
PREPARED = f"""
from django.contrib.auth.models import Group, User
from hetsched.contracts.api.golden import Expectation
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import Program
from hetsched.policies.goldens import save_golden
for name in ("kim", "lee"):
    person = User.objects.create_user(name, password="{PASSWORD}")
    person.groups.add(Group.objects.get(name="policy-admin"))
pod = '''
apiVersion: v1
kind: Pod
metadata: {{name: dsp, annotations: {{hetsched.io/isa: rv64gcv}}}}
spec: {{containers: [{{name: main, image: example/dsp, resources: {{requests: {{cpu: "1", memory: 1Gi}}}}}}]}}
'''
row = save_golden(
    "vector-jobs", cluster=Cluster.objects.get(name="demo"), manifest=pod, expectation=Expectation(isa="rv64gcv"),
    policy_name="spread", actor=Program("ops", "operator"), reason="they crash elsewhere",
)
assert row.state == "kept", row.got
"""

SECOND = """
from hetsched.contracts.api.golden import Expectation
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import Program
from hetsched.policies.goldens import save_golden
from hetsched.policies.models import GoldenPlacement
first = GoldenPlacement.objects.get(name="vector-jobs")
save_golden(
    "second-jobs", cluster=Cluster.objects.get(name="demo"), manifest=first.manifest,
    expectation=Expectation(isa="rv64gcv"), policy_name="binpack", actor=Program("ops", "operator"), reason="a test",
)
"""


@pytest.fixture(scope="module")
def prepared(console: Console) -> None:
    console.run(PREPARED)


@pytest.fixture
def as_person(visit: Callable[..., Visitor], console: Console, prepared: None) -> Callable[[str], Visitor]:
    """Return a factory of tabs logged in as a named user."""

    def make(name: str) -> Visitor:
        visitor = visit(storage_state=None)
        visitor.page.context.clear_cookies()
        visitor.page.goto(f"{console.url}/login/")
        visitor.page.fill("#id_username", name)
        visitor.page.fill("#id_password", PASSWORD)
        visitor.page.keyboard.press("Enter")
        visitor.page.wait_for_url(f"{console.url}/")
        return visitor

    return make


def press(page: Page, selector: str, *keys: str) -> None:
    """Focus a control and press keys there, as a user without a mouse does."""
    control = page.locator(selector)
    expect(control).to_be_enabled()
    control.focus()
    expect(control).to_be_focused()
    for key in keys:
        page.keyboard.press(key)


def weigh(page: Page, plugin: str, weight: str) -> None:
    press(page, f"[data-plugin={plugin}] [data-number]", "Control+a")
    page.keyboard.type(weight)


def test_policy_change_from_preview_to_rollback(visitor: Visitor, as_person: Callable[[str], Visitor]) -> None:
    visitor.open("/")
    for number in range(4):
        visitor.submit(f"web-{number}", schedulerName="hetsched-spread")
    visitor.decision_of("web-3")
    kim = as_person("kim")
    page = kim.page
    kim.expected = ["409 (Conflict)"]  # the browser itself logs that the activation was rejected

    # To the policy: g p, then its link.
    page.keyboard.press("g")
    page.keyboard.press("p")
    page.wait_for_url("**/policies/")
    press(page, "#spread th a", "Enter")
    page.wait_for_url("**/policies/spread/")
    expect(page.locator("#draft-state")).to_have_text("no draft")

    # The draft: pack instead of spread. The slider is moved by keys, the text follows, the switch is the space bar.
    weigh(page, "least-allocated", "0")
    page.locator("summary", has_text="unused").focus()
    page.keyboard.press("Enter")
    press(page, "[data-plugin=best-fit] [data-on]", "Space")
    expect(page.locator("#uses [data-plugin=best-fit] [data-on]")).to_be_focused()
    press(page, "[data-plugin=best-fit] [data-slider]", "ArrowRight", "ArrowRight")
    expect(page.locator("[data-plugin=best-fit] [data-number]")).to_have_value("2")
    press(page, "[data-plugin=best-fit] [data-on]", "Alt+ArrowUp")
    expect(page.locator("#moved")).to_contain_text("best-fit is now at position")
    expect(page.locator("#manifest")).to_have_value(re.compile(r"\{name: best-fit, weight: 2\}"))
    # By mistake the filter is removed too.
    press(page, "[data-plugin=isa-match] [data-on]", "Space")
    expect(page.locator("#draft-text")).to_contain_text("3 differences from v1")
    expect(page.locator("#changes")).to_contain_text("isa-match · position")

    # A reload loses nothing, and leaving would ask for confirmation.
    page.reload()
    expect(page.locator("#draft-state")).to_have_text("unsaved")
    expect(page.locator("#draft-text")).to_contain_text("3 differences from v1")

    # A plugin that was just enabled is used when the weights are tried.
    page.locator("#try").select_option(index=1)
    expect(page.locator("#tried table")).to_be_visible()
    expect(page.locator("#tried .muted", has_text="do not score this pod")).not_to_contain_text("best-fit")

    # The preview: nothing is saved before it is confirmed.
    expect(page.locator("#replay")).to_have_text("Replay…")
    press(page, "#replay", "Enter")
    expect(page.locator("#act-title")).to_have_text("Save the draft first?")
    page.keyboard.press("Escape")
    expect(page.locator("#versions tbody tr")).to_have_count(1)
    expect(page.locator("#draft-state")).to_have_text("unsaved")
    press(page, "#replay", "Enter")
    expect(page.locator("#act [data-confirm]")).to_have_text("Save draft and replay")
    press(page, "#act [data-confirm]", "Enter")
    expect(page.locator("#notes")).to_contain_text("Draft v2 is saved.")
    expect(page.locator("[data-figure=moved] b")).to_have_text("4", timeout=60_000)
    expect(page.locator("#replay-rows")).to_contain_text("default/web-0")
    assert page.locator("#replay-rows a[href^='/decisions/']").count() == 4
    # Every decision is in exactly one count.
    figures = [int(text) for text in page.locator("[data-figure] b").all_text_contents()]
    assert len(figures) == 5
    assert page.locator("#replay-said").text_content().startswith(f"{sum(figures)} decisions replayed")
    expect(page.locator("#replay")).to_have_text("Replay")
    expect(page.locator("#replay-saves")).to_be_hidden()
    expect(page.locator("#draft-state")).to_have_text("draft v2")
    expect(page.locator("[data-golden=vector-jobs] [data-under-draft]")).to_contain_text("fails")

    # The golden placement blocks it, with expected and actual result.
    expect(page.locator("#activate")).to_be_disabled()
    expect(page.locator("#activate-why")).to_contain_text("The draft breaks golden placements and cannot be activated.")
    expect(page.locator("#activate-why")).to_contain_text("expected a node that runs rv64gcv natively")
    press(page, "[data-activate='2']", "Enter")
    expect(page.locator("#act")).to_contain_text("The draft breaks 1 of 1 golden placements")
    expect(page.locator("#act [data-confirm]")).to_be_disabled()
    page.keyboard.type("fewer half-empty nodes")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#act [data-problem]")).to_be_hidden()
    page.keyboard.press("Escape")
    expect(page.locator("#act")).to_be_hidden()

    # Fixed: the filter returns to its place, and with it the golden placement.
    page.locator("summary", has_text="unused").focus()
    page.keyboard.press("Enter")
    press(page, "[data-plugin=isa-match] [data-on]", "Space")
    expect(page.locator("[data-golden=vector-jobs] [data-under-draft]")).to_contain_text("passes")
    expect(page.locator("#draft-text")).to_contain_text("2 differences from v1")
    press(page, "#activate", "Enter")
    expect(page.locator("#act")).to_contain_text("1 of 1 golden placements pass")
    page.keyboard.type("fewer half-empty nodes")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".page-title")).to_contain_text("v3 active")
    expect(page.locator("#versions tbody tr").first).to_contain_text("fewer half-empty nodes")

    # Roll back, with one button and another reason.
    press(page, "[data-rollback]", "Enter")
    expect(page.locator("#act-title")).to_have_text("Roll back to v1 of spread?")
    page.keyboard.type("the night jobs wait longer")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".page-title")).to_contain_text("v1 active")
    expect(page.locator("#versions tbody")).to_contain_text("the night jobs wait longer")
    expect(page.locator("[data-rollback]")).to_have_text("Roll forward to v3…")
    press(page, "[data-rollback]", "Enter")
    expect(page.locator("#act-title")).to_have_text("Roll forward to v3 of spread?")
    page.keyboard.press("Escape")
    page.locator("#versions").get_by_role("button", name="Roll forward…").click()
    expect(page.locator("#act-title")).to_have_text("Roll forward to v3 of spread?")


def test_concurrent_edits_are_merged(as_person: Callable[[str], Visitor]) -> None:
    kim, lee = as_person("kim"), as_person("lee")
    kim.expected = ["412 (Precondition Failed)"]
    mine, theirs = kim.open("/policies/binpack/"), lee.open("/policies/binpack/")
    weigh(mine, "binpack", "5")
    weigh(mine, "taints", "9")
    expect(mine.locator("#save")).to_be_enabled()
    weigh(theirs, "taints", "4")
    weigh(theirs, "node-affinity", "8")
    press(theirs, "#save", "Enter")
    expect(theirs.locator("#draft-state")).to_have_text("draft v2")

    press(mine, "#save", "Enter")
    conflict = mine.locator("#conflict")
    expect(conflict).to_contain_text("lee saved version 2 after you loaded this page")
    # Changes of only one side are already chosen; the value of taints, which both changed, is this user's.
    expect(conflict.locator("[data-key='plugin taints']")).to_contain_text("weight 4")
    expect(conflict.locator("[data-key='plugin taints']")).to_contain_text("weight 9")
    expect(conflict.locator("[data-key='plugin node-affinity'] input[value=theirs]")).to_be_checked()
    press(mine, "#conflict [data-key='plugin taints'] input[value=theirs]", "Space")
    mine.get_by_role("button", name="Apply selection").focus()
    mine.keyboard.press("Enter")
    expect(conflict).to_be_hidden()
    press(mine, "#save", "Enter")
    expect(mine.locator("#draft-state")).to_have_text("draft v3")
    weights = {name: mine.locator(f"[data-plugin={name}] [data-number]").input_value() for name in (
        "binpack", "taints", "node-affinity",
    )}  # fmt: skip
    assert weights == {"binpack": "5", "taints": "4", "node-affinity": "8"}


def test_golden_placement_changes_behind_a_compressing_proxy(
    console: Console, as_person: Callable[[str], Visitor]
) -> None:
    """A proxy that compresses a response makes its ETag weak; If-Match compares strongly and needs the strong form."""

    def weaken(route: Route) -> None:
        if route.request.method != "GET":
            return route.continue_()
        answer = route.fetch()
        return route.fulfill(response=answer, headers={**answer.headers, "etag": f"W/{answer.headers['etag']}"})

    kim = as_person("kim")
    console.run(SECOND)
    page = kim.open("/policies/binpack/")
    page.route("**/api/v1/golden-placements/second-jobs/", weaken)
    row = page.locator("[data-golden=second-jobs]")
    page.locator("[data-golden-edit=second-jobs]").click()
    page.locator("#act [name=enabled]").uncheck()
    page.fill("#act [name=reason]", "paused for a week")
    page.locator("#act [data-confirm]").click()
    expect(page.locator("#act")).to_be_hidden()
    expect(row).to_contain_text("off")

    kim.open("/policies/binpack/")
    page.locator("[data-golden-remove=second-jobs]").click()
    page.fill("#act [name=reason]", "the job has ended")
    page.locator("#act [data-confirm]").click()
    expect(row).to_have_count(0)
