"""An operator whose large job fits no node finds the pods to move and their cost, and moves them."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Console, Visitor

pytestmark = pytest.mark.needs("chromium")

# a has 5 - 4 = 1 CPU left, b 4 - 1 = 3: for the 4 of the job, right has to move from b to a.
SETUP = """
from hetsched.adapters.files import parse_cluster
from hetsched.journal.audit import Program
from hetsched.placement.actions import import_cluster
NODE = '''
apiVersion: v1
kind: Node
metadata: {{name: {name}, labels: {{kubernetes.io/arch: amd64}}}}
status: {{allocatable: {{cpu: "{cpu}", memory: 32Gi, pods: "110"}}, conditions: [{{type: Ready, status: "True"}}]}}
'''
POD = '''
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec: {{nodeName: {node}, containers: [{{name: m, image: i, resources: {{requests: {{cpu: "{cpu}", memory: 1Gi}}}}}}]}}
'''
parts = [NODE.format(name="a", cpu=5), NODE.format(name="b", cpu=4)]
parts += [POD.format(name="left", node="a", cpu=4), POD.format(name="right", node="b", cpu=1)]
content = parse_cluster([("tight", "---".join(parts).encode())])
import_cluster(content, name="tight", actor=Program("test", "operator"))
"""
MANIFEST = """apiVersion: v1
kind: Pod
metadata: {name: large}
spec: {containers: [{name: m, image: i, resources: {requests: {cpu: "4", memory: 1Gi}}}]}
"""


def test_operator_requests_and_confirms_moves(console: Console, visitor: Visitor) -> None:
    console.run(SETUP)
    page = visitor.open("/advice/?cluster=tight")
    page.get_by_role("link", name="Capacity").click()
    page.get_by_label("or a manifest").fill(MANIFEST)
    page.get_by_role("button", name="Find moves").click()
    answer = page.locator("#answer")
    expect(answer).to_contain_text("After 1 move, there is enough capacity on b.")
    expect(answer).to_contain_text("no plan needs fewer moves")
    expect(answer.locator("tbody tr")).to_contain_text(["default/right"])
    answer.get_by_role("button", name="Confirm…").click()
    dialog = page.locator("#act")
    expect(dialog).to_contain_text("1 pod is evicted from its node and restarts on another node.")
    dialog.get_by_label("Reason").fill("the large job cannot wait")
    dialog.get_by_role("button", name="Start move").click()
    expect(page.locator("#plans")).to_contain_text("the large job cannot wait")
    visitor.open("/advice/?cluster=tight")
    plan = page.locator("#plans details").first
    expect(plan).to_contain_text("done")
    expect(plan).to_contain_text("1 of 1 pods moved")
    visitor.open("/nodes/a/pods/?cluster=tight")
    expect(page.locator("#tab")).to_contain_text("default/right")
