"""Sixty hostile strings in every name, label, annotation and message, on every page, are shown unchanged.

Checked here: the markup of the server. Its rendering in a browser: `tests/browser/test_hostile_text.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from django.test import Client
from django.utils import timezone

from hetsched.contracts.api.decision import Evicted, NodeOutcome, Reason, Verdict
from hetsched.contracts.objects.node_report import NumaReport, NumaZone
from hetsched.contracts.waits import WaitsFor
from hetsched.inventory.models import Node
from hetsched.journal.audit import record
from hetsched.placement.models import Decision, ForgottenDecision, Pod, Workload
from tests.builders import a_node, a_pod
from tests.hostile import HOSTILE
from tests.situations import a_cluster, submitted
from web.pages.visible_characters import visible

MARKS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
LIVE_MARKUP = re.compile(
    r"<(img|iframe|base|math|plaintext|svg/|script>window|meta http|form action=//|details open ontog)", re.I
)


def scene() -> list[str]:
    """Return the addresses of pages about a cluster in which every text is hostile; names bypass validation."""
    cluster = a_cluster(*(a_node(f"n{at:02}") for at in range(len(HOSTILE))))
    for node, text in zip(Node.objects.order_by("name"), HOSTILE, strict=True):
        whole = a_node("x").labelled({"hetsched.io/pool": text, "team": text}).tainted("key", text)
        report = whole.having(annotations={"note": text}, problems=(text,)).gpus(1, model=text).build()
        numa = NumaReport(zones=(NumaZone(name=text, cpus="0-3"),))
        node.name = text.replace("/", "").strip()[:250]
        node.report = msgspec.structs.replace(report, name=node.name, numa=numa, source=text)
        node.isa = node.pool = text[:200]
        node.save()
    workload = submitted(cluster, *(a_pod(f"p{at:02}") for at in range(len(HOSTILE))), manifest="\n".join(HOSTILE))
    nodes = list(Node.objects.order_by("id"))
    for at, (pod, text) in enumerate(zip(workload.pods.order_by("id"), HOSTILE, strict=True)):
        reason = Reason(text, text, 1, text, (text,), text, before=60, after=0)
        outcome = NodeOutcome(nodes[at].name, text, False, reason, (), None, None)
        made = Decision.objects.create(
            cluster=cluster, workload=workload, pod=pod, namespace="default", pod_name=text, verdict=Verdict.NOT_NOW,
            policy_name="hetsched", policy_version=1, policy_rule=text[:20], snapshot=text[:64], cluster_revision=1,
            inventory_revision=1, summary=text, reasons=(reason,), top=(outcome,), node_name="",
            evictions=(Evicted(text, text, 1, text),), waits_for=(WaitsFor(text, (), text),), created_at=timezone.now(),
        )  # fmt: skip
        Pod.objects.filter(pk=pod.pk).update(
            decision=made, state="not-now", name=text, message=text, waits_for=(WaitsFor(text, (), text),)
        )
        record(actor=text, action=text[:60], obj=(text[:40], text), reason=text)
        ForgottenDecision.objects.create(
            id=900 + at, cluster=cluster, namespace="default", verdict="placed", summary=text, created_at=timezone.now()
        )
    Workload.objects.update(name=HOSTILE[0], submitted_by=HOSTILE[1])
    return list(addresses(workload))


def addresses(workload: Workload) -> Iterator[str]:
    yield from (
        "/",
        "/nodes/",
        "/workloads/",
        "/decisions/",
        "/balance/",
        "/queue/",
        "/clusters/",
        "/audit/",
        "/tokens/",
    )
    yield from ("/what-if/", "/policies/", "/policies/hetsched/", "/shadow/", "/search/?q=x", "/advice/")
    yield f"/workloads/{workload.pk}/"
    for node in Node.objects.order_by("id"):
        yield f"/nodes/{quote(node.name, safe='')}/"
    tabs = ("isa", "gpu", "numa", "balance", "pods", "decisions")
    for tab, node in zip(tabs * 10, Node.objects.order_by("id"), strict=True):
        yield f"/nodes/{quote(node.name, safe='')}/{tab}/"
    for pod in workload.pods.order_by("id"):
        yield f"/why/{pod.pk}/"
        yield f"/decisions/{pod.decision_id}/"
    yield from (f"/decisions/{900 + at}/" for at in range(0, len(HOSTILE), 6))
    yield from (f"/search/?q={quote(text)}" for text in HOSTILE[::6])


def test_no_page_runs_or_hides_hostile_text(db: Any, browsing: Callable[..., Client]) -> None:
    client = browsing("operator", is_superuser=True, is_staff=True)
    for address in scene():
        answer = client.get(address)
        assert answer.status_code in (200, 404, 410), address
        text = answer.content.decode()
        assert not LIVE_MARKUP.search(text), (address, LIVE_MARKUP.search(text))
        assert not MARKS.search(text), (address, MARKS.search(text))
        assert "</script><img" not in text, address


@pytest.mark.parametrize(
    ("hidden", "shown"),
    [
        ("abc\u202egnp.exe", "abc⟦U+202E⟧gnp.exe"),
        ("a\x1b[31m\x00", "a␛[31m␀"),
        ("a\u200bb", "a⟦U+200B⟧b"),
        ("a\n\tb", "a\n\tb"),
    ],
)
def test_invisible_characters_are_shown_by_name(hidden: str, shown: str) -> None:
    assert visible(hidden) == shown


def test_letters_of_all_directions_and_emoji_are_unchanged(db: Any) -> None:
    for text in ("שלום", "مرحبا", "漢字", "👩‍👩‍👧‍👦"):
        assert visible(text) == text
