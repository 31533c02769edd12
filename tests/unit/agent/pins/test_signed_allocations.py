"""Allocations from annotations and responses apply only if signed for the pod on this node; the latest wins."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hetsched.agent.pins.grants import MOST_PROBLEMS, Grants
from hetsched.contracts.messages.signatures import node_key, sign

KEY = node_key(b"secret", "prod", "n1")
OTHER = node_key(b"other", "prod", "n1")


def text(uid: str = "u1", node: str = "n1", epoch: int = 5, key: bytes = KEY, cpus: str = "2-3", **more: Any) -> str:
    document = {"v": 1, "cpus": cpus, "containers": {"main": cpus}, "policy": "exclusive", **more}
    document |= {"uid": uid, "node": node, "epoch": epoch}
    return json.dumps(document | {"sig": sign(document, key)})


@pytest.fixture
def grants() -> Grants:
    grants = Grants("n1")
    grants.learn("prod", KEY)
    return grants


def cpus(grants: Grants, uid: str = "u1") -> str | None:
    granted = grants.of(uid)
    return None if granted is None else granted.cpus


def codes(grants: Grants) -> list[str]:
    return [problem.code for problem in grants.problems]


def test_signed_grant_is_accepted(grants: Grants) -> None:
    grants.process_annotation("u1", text())
    assert (cpus(grants), codes(grants)) == ("2-3", [])


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ('{"v":1,"cpus":"0-7","containers":{"main":"0-7"},"policy":"exclusive"}', "AllocationUnsigned"),
        (text(key=OTHER), "AllocationForged"),
        (text().replace('"2-3"', '"0-7"'), "AllocationForged"),
        (text(uid="u2"), "AllocationForeign"),
        (text(node="n2"), "AllocationForeign"),
        ("{}}", "AllocationMalformed"),
    ],
)
def test_forged_replayed_and_foreign_allocations_are_rejected(grants: Grants, said: str, code: str) -> None:
    grants.process_annotation("u1", said)
    assert (cpus(grants), codes(grants)) == (None, [code])
    grants.answered([("u1", said)])
    assert (cpus(grants), codes(grants)) == (None, [code])


def test_nothing_is_accepted_before_the_signer_is_known() -> None:
    grants = Grants("n1")
    grants.process_annotation("u1", text())
    assert grants.of("u1") is None


def test_earlier_epoch_is_rejected(grants: Grants) -> None:
    grants.process_annotation("u1", text(epoch=6, cpus="4-5"))
    grants.process_annotation("u1", text(epoch=5, cpus="2-3"))
    grants.answered([("u1", text(epoch=5, cpus="2-3"))])
    assert (cpus(grants), codes(grants)) == ("4-5", ["AllocationOutdated"])


def test_later_epoch_replaces_and_an_answer_precedes_an_annotation(grants: Grants) -> None:
    grants.process_annotation("u1", text(epoch=5, cpus="2-3"))
    grants.answered([("u1", text(epoch=5, cpus="4-5"))])
    grants.process_annotation("u1", text(epoch=5, cpus="2-3"))
    assert cpus(grants) == "4-5"
    grants.answered([("u1", text(epoch=5, cpus="6-7"))])
    assert cpus(grants) == "6-7"
    grants.process_annotation("u1", text(epoch=6, cpus="2-3"))
    assert (cpus(grants), codes(grants)) == ("2-3", [])


def test_new_key_keeps_verified_allocations(grants: Grants) -> None:
    grants.process_annotation("u1", text())
    grants.learn("prod", OTHER)
    grants.process_annotation("u1", text())
    assert (cpus(grants), codes(grants)) == ("2-3", [])
    grants.process_annotation("u2", text(uid="u2"))
    assert (cpus(grants, "u2"), codes(grants)) == (None, ["AllocationForged"])
    grants.answered([("u2", text(uid="u2", key=OTHER))])
    assert (cpus(grants, "u2"), codes(grants)) == ("2-3", [])


def test_new_control_plane_starts_from_zero(grants: Grants) -> None:
    grants.process_annotation("u1", text())
    grants.learn("test", node_key(b"secret", "test", "n1"))
    assert grants.of("u1") is None


def test_allocations_of_deleted_pods_are_forgotten(grants: Grants) -> None:
    grants.process_annotation("u1", text())
    grants.process_annotation("u3", "{")
    grants.answered([("u2", text(uid="u2"))])
    grants.forget({"u1"})
    # The runtime does not know u2 yet, but the control plane names it.
    assert (cpus(grants), cpus(grants, "u2"), codes(grants)) == ("2-3", "2-3", [])
    grants.answered([])
    grants.forget({"u2"})
    assert (cpus(grants), cpus(grants, "u2")) == (None, "2-3")


def test_flood_of_invalid_signatures_is_reported_in_part(grants: Grants) -> None:
    for number in range(50):
        grants.process_annotation(f"u{number}", "{}")
    assert len(grants.problems) == MOST_PROBLEMS
