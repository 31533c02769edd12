"""ETag, If-None-Match, If-Match: 304 for unchanged documents, 412 for stale writes, 428 for a missing ETag."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.inventory.actions import cordon
from hetsched.journal.audit import SYSTEM
from hetsched.placement.models import Decision

from .conftest import POD, Api

READABLE = [
    "clusters/", "clusters/lab/", "nodes/", "nodes/n1/", "nodes/n1/isa/", "nodes/n2/gpu/", "nodes/n1/numa/",
    "policies/", "policies/hetsched/", "policies/hetsched/versions/", "policies/hetsched/versions/1/",
    "plugins/", "plugins/taints/", "decisions/", "decisions/{decision}/", "workloads/",
    "metrics/balance/", "metrics/at-risk/",
]  # fmt: skip


@pytest.mark.parametrize("address", READABLE)
def test_every_resource_has_an_etag_and_returns_304(operator: Api, decided: str, address: str) -> None:
    address = address.format(decision=Decision.objects.latest("id").pk)
    first = operator("GET", address, status=200)
    tag = first["ETag"]
    second = operator("GET", address, if_none_match=f'"other", {tag}', status=304)
    assert (second.content, second["ETag"]) == (b"", tag)
    operator("GET", address, if_none_match='"other"', status=200)
    assert "private" in first["Cache-Control"]


def test_weak_etag_is_valid_for_reads_only(operator: Api, decided: str) -> None:
    weak = "W/" + operator.tag("nodes/n1/")
    operator("GET", "nodes/n1/", if_none_match=weak, status=304)
    operator("POST", "nodes/n1/actions/", {"action": "cordon", "reason": "x"}, if_match=weak, status=412)


def test_etag_changes_with_its_resource(operator: Api, decided: str) -> None:
    before = operator.tag(f"workloads/{decided}/")
    operator("POST", f"workloads/{decided}/actions/", {"action": "cancel", "reason": "x"}, if_match=before, status=200)
    assert operator.tag(f"workloads/{decided}/") != before


NODE = "{apiVersion: v1, kind: Node, metadata: {name: a}, status: {allocatable: {cpu: '1'}}}"
WRITES = [
    ("nodes/n1/", "nodes/n1/actions/", {"action": "cordon", "reason": "x"}),
    ("workloads/{}/", "workloads/{}/actions/", {"action": "cancel", "reason": "x"}),
    ("policies/spread/", "policies/spread/activate/", {"version": 1, "reason": "x"}),
    ("policies/spread/", "policies/spread/rollback/", {"reason": "x"}),
    ("clusters/lab/", "clusters/lab/import/", {"manifest": NODE, "reason": "x"}),
]


@pytest.mark.parametrize(("read", "write", "body"), WRITES)
def test_write_requires_the_tag_of_the_read(
    api: Any, operator: Api, decided: str, read: str, write: str, body: Any
) -> None:
    caller = api("policy-admin") if "policies" in write else operator
    needed = caller("POST", write.format(decided), body, status=428).json()
    assert needed["code"] == "PreconditionRequired"
    stale = caller("POST", write.format(decided), body, if_match='"0123"', status=412)
    assert stale.json()["code"] == "PreconditionFailed"
    assert stale["ETag"] == caller.tag(read.format(decided))


def test_one_of_two_operators_with_one_tag_gets_a_conflict(operator: Api, cluster: Any) -> None:
    tag = operator.tag("nodes/n1/")
    cordon(cluster, "n1", actor=SYSTEM, reason="somebody was faster")
    operator("POST", "nodes/n1/actions/", {"action": "cordon", "reason": "x"}, if_match=tag, status=412)


def test_placements_do_not_make_an_operators_write_stale(operator: Api, cluster: Any) -> None:
    from workers.schedule import run

    before = operator.tag("nodes/n1/")
    operator("POST", "workloads/", POD, kind="application/yaml", status=202)
    run(cluster.pk)
    assert operator.tag("nodes/n1/") != before
    operator("POST", "nodes/n1/actions/", {"action": "cordon", "reason": "x"}, if_match=before, status=200)


def test_if_match_star_writes_any_version(operator: Api, cluster: Any) -> None:
    operator("POST", "nodes/n1/actions/", {"action": "cordon", "reason": "x"}, if_match="*", status=200)


def test_delete_accepts_if_match(operator: Api, decided: str) -> None:
    operator("DELETE", f"workloads/{decided}/", if_match='"0123"', status=412)
    operator("DELETE", f"workloads/{decided}/", if_match=operator.tag(f"workloads/{decided}/"), status=200)


def test_first_import_needs_no_etag(operator: Api, cluster: Any) -> None:
    operator("POST", "clusters/", {"name": "more", "reason": "second"}, status=201)
    operator("POST", "clusters/more/import/", {"manifest": NODE, "reason": "first"}, status=200)
    operator("POST", "clusters/more/import/", {"manifest": NODE, "reason": "again"}, status=428)
