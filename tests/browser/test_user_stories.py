"""Users of each role reach their goal from the first page on, without a manual.

The policy admin's story is in `test_policy_admin_story`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Console, Visitor

pytestmark = pytest.mark.needs("chromium")


def test_operator_sees_problems_reasons_and_the_effect_of_a_drain(visitor: Visitor) -> None:
    visitor.open("/")
    visitor.submit("wants-a-disk", nodeSelector={"disk": "ssd"})
    visitor.decision_of("wants-a-disk")
    page = visitor.open("/")
    # Is anything wrong? A tile that is a link.
    page.get_by_role("link", name=re.compile("Never fits")).click()
    page.wait_for_url("**/workloads/?state=never-fits*")
    # Why is this pod pending? Its sentence, with the filter that left no node.
    page.locator("#rows").get_by_role("link", name=re.compile("wants-a-disk")).first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("wants-a-disk")
    expect(page.locator("main")).to_contain_text("node-affinity 0")
    # The state of this node.
    for tab, text in {"isa": "zve64d", "gpu": "", "numa": "", "balance": "CPU"}.items():
        visitor.open(f"/nodes/k1-0/{tab}/")
        expect(page.get_by_role("heading", level=1)).to_contain_text("k1-0")
        expect(page.locator("main")).to_contain_text(text)
    # The effect of draining the node of a pod. Pods of DaemonSets stay, so the pod is one that can move.
    visitor.submit("can-move")
    decision = visitor.decision_of("can-move")
    node = page.evaluate("async (path) => (await (await fetch(`/api/v1${path}`)).json()).node", decision)
    visitor.open(f"/what-if/?cpu=1&drain={node}")
    expect(page.locator("#result")).to_contain_text("Displaced pods")


def test_rejected_pipeline_submission_links_to_its_page(visitor: Visitor, console: Console, tmp_path: Path) -> None:
    made = console.plane.run("-m", "hetsched.cli", "token", "create", "--role", "submitter", "-o", "json")
    token = json.loads(made)["token"]
    asked = visitor.page.request.post(
        f"{console.url}/api/v1/workloads/?cluster=demo",
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/yaml", "Idempotency-Key": "run-7"},
        data="""
apiVersion: v1
kind: Pod
metadata: {name: needs-the-impossible, namespace: ci, annotations: {hetsched.io/isa: "rv64gcv_zvkned"}}
spec: {containers: [{name: main, image: example/image, resources: {requests: {cpu: "1"}}}]}
""",
    )
    accepted = asked.json()
    assert asked.status == 202, accepted
    workload = visitor.page.request.get(
        f"{console.url}/api/v1/workloads/{accepted['id']}/?wait=30", headers={"Authorization": f"Bearer {token}"}
    ).json()
    assert workload["state"] == "never-fits"
    page = visitor.open(f"/workloads/{accepted['id']}/")
    expect(page.locator("main")).to_contain_text("zvkned")


def test_platform_engineer_checks_components_and_creates_a_token(visitor: Visitor) -> None:
    page = visitor.open("/clusters/")
    parts = page.locator("#parts")
    expect(parts.get_by_role("row", name=re.compile("Database"))).to_contain_text("works")
    visitor.open("/tokens/")
    page.get_by_role("button", name=re.compile("token", re.IGNORECASE)).first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    visitor.open("/audit/")
    expect(page.locator("main")).to_contain_text("cluster.import")


def test_capacity_planner_compares_policies_on_another_fleet(
    browser: Browser, console: Console, tmp_path: Path
) -> None:
    fleet, queue, report = tmp_path / "fleet.json", tmp_path / "queue.yaml", tmp_path / "report"
    fleet.write_text(
        console.plane.run("-c", "import sys; from hetsched.adapters.objects.export.cluster import write_cluster;"
                          "from hetsched.adapters.traces.simulated_fleet import demo_cluster;"
                          "sys.stdout.write(write_cluster(demo_cluster(11)).decode())")
    )  # fmt: skip
    queue.write_text("""
apiVersion: batch/v1
kind: Job
metadata: {name: night, namespace: ci}
spec:
  parallelism: 40
  completions: 40
  template:
    spec: {restartPolicy: Never, containers: [{name: main, image: example/image, resources: {requests: {cpu: "2"}}}]}
""")
    console.plane.run(
        "-m", "hetsched.cli", "simulate", "--cluster", str(fleet), "--workload", str(queue),
        "--policy", "hetsched", "--policy", "spread", "--report", str(report),
    )  # fmt: skip
    asked: list[str] = []
    page = browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto((report / "index.html").as_uri())
    expect(page.locator("body")).to_contain_text("hetsched")
    expect(page.locator("body")).to_contain_text("spread")
    assert page.locator("img, svg").count() > 0
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_tour_is_shown_once(visit: Callable[..., Visitor], console: Console) -> None:
    visit()  # creates the session
    session = json.loads(json.dumps(console.session))
    for origin in session["origins"]:
        origin["localStorage"] = [item for item in origin["localStorage"] if item["name"] != "tour"]
    newcomer = visit(storage_state=session)
    page = newcomer.open("/")
    tour = page.get_by_role("complementary", name="Guided tour")
    expect(tour).to_contain_text("A heterogeneous fleet")
    place = page.locator("#tour-place")
    step, steps = 1, page.locator("#tour article").count()
    while not tour.get_by_text("Simulate before you submit").is_visible():
        tour.get_by_role("link", name="Next").click()
        step += 1
        expect(place).to_have_text(f"{step} of {steps}")  # most steps are on a separate page
    page.wait_for_url("**/what-if/?*")
    expect(page.locator("#result")).to_contain_text("fits")
    tour.get_by_role("button", name="Do not show again").click()
    expect(tour).to_be_hidden()
    newcomer.open("/")
    expect(page.locator("#tour")).to_be_hidden()
    # Opened again from the menu, it starts from the beginning, and the menu does not cover it.
    page.locator("#own > summary").click()
    page.get_by_role("button", name="Guided tour").click()
    expect(tour).to_contain_text("A heterogeneous fleet")
    expect(page.locator("details.menu[open]")).to_have_count(0)
    expect(tour.get_by_role("link", name="Next")).to_be_focused()
