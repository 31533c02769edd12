"""An allocation is accepted only with the control plane's signature for this pod on this node."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.signatures import VerifiedAllocation, canonical, node_key, sign, verify

SECRET = b"0123456789abcdef0123456789abcdef"
KEY = node_key(SECRET, "prod", "n1")
DOCUMENT: dict[str, Any] = {
    "v": 1, "cpus": "0-3", "zones": [{"name": "node-0", "cpus": "0-3", "cpuMillis": 4000, "memoryMiB": 1024}],
    "gpus": [{"index": 1, "uuid": "GPU-a", "milli": 1000, "memoryMiB": 40960}], "policy": "exclusive",
    "isa": {"mode": "emulated", "required": "rv64gc", "offered": None, "slowdown": 7.3},
    "containers": {"main": "0-2", "side": "3"}, "uid": "pod-1", "node": "n1", "epoch": 7,
}  # fmt: skip


def text(key: bytes = KEY, **changed: Any) -> str:
    document = DOCUMENT | changed
    return json.dumps(document | {"sig": sign(document, key)})


def refused(said: str, uid: str = "pod-1", node: str = "n1", key: bytes = KEY) -> str:
    with pytest.raises(InputError) as error:
        verify(said, key, uid=uid, node=node)
    return error.value.code


def test_signed_allocation_is_granted() -> None:
    granted = verify(text(), KEY, uid="pod-1", node="n1")
    assert isinstance(granted, VerifiedAllocation)
    assert (granted.epoch, granted.policy, granted.containers) == (7, "exclusive", {"main": "0-2", "side": "3"})
    assert [(card.index, card.uuid, card.milli, card.memory_mib) for card in granted.gpus] == [
        (1, "GPU-a", 1000, 40960)
    ]
    assert [(zone.name, zone.cpus) for zone in granted.zones] == [("node-0", "0-3")]


def test_signature_is_reproducible_with_the_key() -> None:
    small = {"v": 1, "uid": "u", "node": "n", "epoch": 1}
    key = hmac.new(SECRET, b'hetsched agent\n["prod", "n"]', hashlib.sha256).digest()
    assert node_key(SECRET, "prod", "n") == key
    message = b'hetsched allocation\n{"epoch":1,"node":"n","uid":"u","v":1}'
    assert sign(small, key) == hmac.new(key, message, hashlib.sha256).hexdigest()


def test_order_and_white_space_are_not_signed() -> None:
    signed = json.loads(text())
    moved = json.dumps(dict(reversed(signed.items())), indent=2)
    assert verify(moved, KEY, uid="pod-1", node="n1") == verify(text(), KEY, uid="pod-1", node="n1")
    assert canonical(signed) == canonical(DOCUMENT)


@pytest.mark.parametrize(
    ("member", "forged"),
    [
        ("cpus", "0-7"), ("containers", {"main": "0-7"}), ("epoch", 8), ("uid", "pod-2"), ("node", "n2"),
        ("policy", "immovable"), ("gpus", []), ("zones", []), ("v", 2), ("isa", None), ("more", 1),
    ],
)  # fmt: skip
def test_changed_member_is_detected(member: str, forged: object) -> None:
    said = json.loads(text()) | {member: forged}
    assert refused(json.dumps(said), uid=said["uid"], node=said["node"]) == "AllocationForged"


def test_removed_member_is_detected() -> None:
    for member in DOCUMENT:
        said = {name: value for name, value in json.loads(text()).items() if name != member}
        assert refused(json.dumps(said)) == "AllocationForged"


def test_signature_is_bound_to_node_cluster_and_control_plane() -> None:
    others = [node_key(SECRET, "prod", "n2"), node_key(SECRET, "test", "n1"), node_key(b"x" * 32, "prod", "n1")]
    assert len({KEY, *others}) == 4
    assert node_key(SECRET, 'a", "b', "c") != node_key(SECRET, "a", 'b", "c')
    for key in others:
        assert refused(text(key)) == "AllocationForged"


def test_signature_of_another_pod_or_node_is_rejected() -> None:
    assert refused(text(), uid="pod-2") == "AllocationForeign"
    assert refused(text(node="n2"), node="n1") == "AllocationForeign"


@pytest.mark.parametrize("said", [json.dumps(DOCUMENT), json.dumps(DOCUMENT | {"sig": None})])
def test_unsigned_allocation_is_not_a_forgery(said: str) -> None:
    assert refused(said) == "AllocationUnsigned"


@pytest.mark.parametrize("sig", ["", "0" * 64, 7, ["x"], "é", "\ud800", sign(DOCUMENT, KEY).upper()])
def test_non_text_signature_is_forged(sig: object) -> None:
    assert refused(json.dumps(DOCUMENT | {"sig": sig})) == "AllocationForged"


@pytest.mark.parametrize(
    "said",
    [
        "", "[]", "null", "{", "[" * 100_000, '{"a":NaN}', '{"sig":"a","sig":"b"}', '{"a":{"b":1,"b":2}}',
        '{"a":"' + "x" * 300_000 + '"}', '{"a":' + "9" * 5000 + "}",
    ],
)  # fmt: skip
def test_invalid_text_is_malformed(said: str) -> None:
    assert refused(said) == "AllocationMalformed"


@pytest.mark.parametrize("wrong", [{"epoch": -1}, {"epoch": "7"}, {"uid": 1}, {"containers": []}, {"gpus": {}}])
def test_signed_text_must_be_well_formed(wrong: dict[str, Any]) -> None:
    assert refused(text(**wrong)) == "AllocationMalformed"
    assert refused(text(containers={"main": "0-"})) == "CpusetMalformed"


def test_nothing_is_signed_without_a_recipient() -> None:
    with pytest.raises(KeyError, match="uid"):
        sign({"v": 1, "node": "n1", "epoch": 1}, KEY)


@given(st.text(max_size=40) | st.from_regex(r'\{"sig":"[0-9a-f]{64}","[a-z]{1,5}":[0-9.e\-]{1,9}\}', fullmatch=True))
def test_arbitrary_text_is_rejected(said: str) -> None:
    assert refused(said) in {"AllocationMalformed", "AllocationUnsigned", "AllocationForged"}
