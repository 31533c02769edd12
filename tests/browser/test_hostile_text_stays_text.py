"""Markup in names, pools, instruction sets and messages is shown as it is written, by scripts too."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Console, Visitor

pytestmark = pytest.mark.needs("chromium")

HOSTILE = "</script><img src=x onerror=window.hacked=1>"
# Set past the checks of the doors, as a cluster or a plugin of the future may bring it.
SETUP = f"""
from hetsched.adapters.simulator import demo_cluster
from hetsched.inventory.models import Cluster, Node
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import import_cluster
from hetsched.placement.models import Decision, Pod
import msgspec
text = {HOSTILE!r}
whole = demo_cluster(3)
node = msgspec.structs.replace(whole.nodes[0], labels={{**whole.nodes[0].labels, "team": text}}, problems=(text,))
content = msgspec.structs.replace(whole, nodes=(node,), running=(), pending=())
cluster = import_cluster(content, name="hostile", actor=SYSTEM)
Node.objects.filter(cluster=cluster).update(isa=text, pool=text)
"""
DECIDE = f"""
from django.utils import timezone
from hetsched.placement.models import Decision, Pod
pod = Pod.objects.get(name="bait")
Decision.objects.create(
    cluster=pod.cluster, workload=pod.workload, pod=pod, namespace=pod.namespace, pod_name={HOSTILE!r},
    verdict="never-fits", policy_name="hetsched", policy_version=1, snapshot="x", cluster_revision=1,
    inventory_revision=1, summary={HOSTILE!r}, created_at=timezone.now(),
)
"""


def test_pages_and_scripts_show_it(visitor: Visitor, console: Console) -> None:
    console.run(SETUP)
    page = visitor.open("/?cluster=hostile")
    visitor.submit("bait", cluster="hostile")
    console.run(DECIDE)
    node = page.locator(".node").first.get_attribute("data-name")
    page.reload()
    expect(page.locator("#feed")).to_contain_text(HOSTILE)
    expect(page.locator("#grid .pool h4")).to_contain_text(HOSTILE)
    page.locator(".node").first.hover()
    expect(page.locator("#readout")).to_contain_text(HOSTILE)
    for address in (f"/nodes/{node}/", f"/nodes/{node}/isa/", "/nodes/", "/decisions/"):
        visitor.open(f"{address}?cluster=hostile")
        expect(page.locator("main")).to_contain_text(HOSTILE)
    visitor.open("/what-if/?cluster=hostile&cpu=1000")
    expect(page.locator("#sentence")).to_contain_text("never fits")
    expect(page.locator("#ghosts")).to_contain_text(HOSTILE)
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
