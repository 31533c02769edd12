"""Markup in names, pools, instruction sets and messages is shown as text, also by scripts."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Console, Visitor
from tests.hostile import HOSTILE as HOSTILE_TEXTS

MARKS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069]")
pytestmark = pytest.mark.needs("chromium")

HOSTILE = "</script><img src=x onerror=window.hacked=1>"
# Written past validation, as a future cluster or plugin may do.
SETUP = f"""
from hetsched.adapters.traces.simulated_fleet import demo_cluster
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


def test_pages_and_scripts_show_markup_as_text(visitor: Visitor, console: Console) -> None:
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


SIXTY = f"""
from hetsched.adapters.traces.simulated_fleet import demo_cluster
from hetsched.inventory.models import Node
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import import_cluster
import msgspec
texts = {list(HOSTILE_TEXTS)!r}
whole = demo_cluster(3)
one = whole.nodes[0]
nodes = tuple(
    msgspec.structs.replace(one, name=f"h-{{at}}", labels={{**one.labels, "team": text}}, problems=(text,))
    for at, text in enumerate(texts)
)
content = msgspec.structs.replace(whole, nodes=nodes, running=(), pending=())
cluster = import_cluster(content, name="sixty", actor=SYSTEM)
for node, text in zip(Node.objects.filter(cluster=cluster).order_by("id"), texts):
    name = text.replace("/", "").strip()
    Node.objects.filter(pk=node.pk).update(
        name=name, isa=text[:200], pool=text[:200], report=msgspec.structs.replace(node.report, name=name)
    )
"""


def hostile_pages(console: Console, visitor: Visitor) -> list[str]:
    """Add the sixty strings as nodes, decisions and audit entries; return pages that show them."""
    console.run(SIXTY)
    visitor.open("/?cluster=sixty")
    visitor.submit("sixty-bait", cluster="sixty")
    visitor.decision_of("sixty-bait")  # the worker's decision, which a later `pod.save()` would overwrite
    console.run(
        f"""
from django.utils import timezone
from hetsched.contracts.api.decision import Reason
from hetsched.journal.audit import record
from hetsched.placement.models import Decision, Pod
texts = {list(HOSTILE_TEXTS)!r}
pod = Pod.objects.get(name="sixty-bait")
reasons = tuple(Reason(text, text, 1, text, (text,), text, before=60, after=0) for text in texts)
for text in texts:
    made = Decision.objects.create(
        cluster=pod.cluster, workload=pod.workload, pod=pod, namespace=pod.namespace, pod_name=text, reasons=reasons,
        verdict="never-fits", policy_name="hetsched", policy_version=1, snapshot="x", cluster_revision=1,
        inventory_revision=1, summary=text, created_at=timezone.now(),
    )
    record(actor=text, action="x", obj=("x", text), reason=text)
pod.workload.name = texts[0]
pod.workload.save()
pod.message = texts[-2]
pod.save()
"""
    )
    pod, decision = visitor.page.evaluate(
        """async () => {
            const {items} = await (await fetch("/api/v1/decisions/?cluster=sixty")).json();
            const workload = items[0].workload;
            return [workload, items[0].id];
        }"""
    )
    lists = ("/", "/nodes/", "/workloads/", "/decisions/", "/audit/", "/queue/", "/balance/", "/what-if/?cpu=1000")
    here = [f"{address}{'&' if '?' in address else '?'}cluster=sixty" for address in lists]
    return [*here, f"/workloads/{pod}/", f"/workloads/{pod}/why/", f"/decisions/{decision}/"]


def test_hostile_strings_neither_run_nor_break_the_layout(visitor: Visitor, console: Console) -> None:
    page = visitor.page
    for address in hostile_pages(console, visitor):
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 900})
            visitor.open(address)
            if page.locator("#question").count():
                expect(page.locator("#sentence")).to_be_visible()
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, (address, width, wide)
            assert page.evaluate("window.hacked") is None, address
            seen = page.locator("main").inner_text()
            assert not MARKS.search(seen), (address, MARKS.search(seen))
