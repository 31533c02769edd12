"""Signatures of allocations, which only the control plane and the agent of one node can make or check.

A client with write access to annotations could otherwise grant a pod any CPU and GPU, copy another pod's allocation, or
restore an old one. Every node has its own key, HMAC-SHA256 of its cluster and name under the control plane's secret.
`sig` is HMAC-SHA256 under that key over the canonical bytes of the allocation without `sig`: JSON with sorted members,
without white space and with only ASCII. UID, node and epoch are members, so they are signed with the granted resources.
Programs that read an allocation first verify the signature and then use only the signed members.

    no `sig`                                        AllocationUnsigned
    another signature, or any member changed        AllocationForged
    valid signature, but for another pod or node    AllocationForeign

Source: RFC 2104, RFC 4231.
Invariant: `verify` accepts only the text of a signed document with the same key, uid and node, and returns that
document.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import Annotated, NoReturn

import msgspec

from ..cpuset import parse_cpuset
from ..errors import InputError
from ..message import Message
from ..objects.allocation import CardGrant, ZoneGrant

MAX_TEXT = 256 * 1024  # limit of Kubernetes on the total size of an object's annotations
_CONTEXT = b"hetsched allocation\n"
_KEY_CONTEXT = b"hetsched agent\n"
# `json.dumps` creates an encoder in each call.
_write = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


class VerifiedAllocation(msgspec.Struct, frozen=True):
    """Verified allocation of one pod on one node."""

    uid: str
    node: str
    epoch: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    cpus: str = ""
    zones: tuple[ZoneGrant, ...] = ()
    gpus: tuple[CardGrant, ...] = ()
    policy: str | None = None
    containers: dict[str, str] = {}
    predicted: tuple[ZoneGrant, ...] = ()


def node_key(secret: bytes, cluster: str, node: str) -> bytes:
    """Return the key that a control plane shares with the agent of one node only."""
    return hmac.digest(secret, _KEY_CONTEXT + json.dumps([cluster, node]).encode(), "sha256")


def canonical(document: Mapping[str, object]) -> bytes:
    """Return the signed bytes of an allocation: all its members except `sig`."""
    members = {name: member for name, member in document.items() if name != "sig"}
    return _write(members).encode()


def sign(document: Mapping[str, object], key: bytes) -> str:
    """Return the `sig` of an allocation, which must contain `uid`, `node` and `epoch`.

    Raises: KeyError if any of these members is missing.
    """
    if missing := {"uid", "node", "epoch"} - document.keys():
        raise KeyError(*sorted(missing))
    return hmac.digest(key, _CONTEXT + canonical(document), "sha256").hex()


def verify(text: str, key: bytes, *, uid: str, node: str) -> VerifiedAllocation:
    """Return the verified allocation, if the control plane wrote it for this pod on this node.

    Raises: InputError `AllocationMalformed`, `AllocationUnsigned`, `AllocationForged` or `AllocationForeign`.
    """
    document = _read(text)
    given = document.get("sig")
    if given is None:
        raise InputError("AllocationUnsigned", "the allocation is not signed")
    if not isinstance(given, str) or not _matches(document, given, key):
        raise InputError(
            "AllocationForged",
            "the signature of the allocation is not a valid signature of the control plane for this node",
        )
    granted = _typed(document)
    if granted.uid != uid:
        raise InputError(
            "AllocationForeign", Message("the allocation was signed for a different pod, {uid}", uid=granted.uid[:64])
        )
    if granted.node != node:
        raise InputError(
            "AllocationForeign",
            Message("the allocation was signed for a different node, {node}", node=granted.node[:253]),
        )
    return granted


def _matches(document: Mapping[str, object], given: str, key: bytes) -> bool:
    try:
        expected = hmac.digest(key, _CONTEXT + canonical(document), "sha256").hex()
    except (ValueError, RecursionError):
        return False
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "surrogatepass"))


def _read(text: str) -> dict[str, object]:
    if len(text) > MAX_TEXT:
        raise InputError("AllocationMalformed", Message("the value is longer than {n} characters", n=MAX_TEXT))
    try:
        document = json.loads(text, object_pairs_hook=_members, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        raise InputError(
            "AllocationMalformed", Message("the value is not an allocation: {text}", text=str(error)[:200])
        ) from None
    if not isinstance(document, dict):
        raise InputError("AllocationMalformed", "the allocation is not a JSON object")
    return document


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # JSON parsers differ in which of two members with the same name they use, so duplicates are rejected.
    if len(members := dict(pairs)) != len(pairs):
        raise ValueError("duplicate member name")
    return members


def _not_json(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _typed(document: Mapping[str, object]) -> VerifiedAllocation:
    try:
        granted = msgspec.convert(document, VerifiedAllocation)
    except msgspec.ValidationError as error:
        raise InputError(
            "AllocationMalformed", Message("the value is not an allocation: {text}", text=str(error))
        ) from None
    for cpus in (granted.cpus, *granted.containers.values()):
        parse_cpuset(cpus)
    return granted
