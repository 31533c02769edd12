"""Calls to the API server for the allocation of one claim."""

from __future__ import annotations

import json
from typing import Any, cast

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.devices.allocation import FINALIZER, allocate, release
from hetsched.adapters.kubernetes.pods.binding import BindingOutcome, BindingRequest, BindingResult
from hetsched.contracts.objects.allocation import DeviceGrant
from hetsched.contracts.objects.devices import DeviceId

GRANT = DeviceGrant(claim="gpu", uid="c", request="r", device=DeviceId("gpu.example.com", "n1", "d0"))


class ClaimServer:
    """API server with one claim, which a strategic merge patch changes only if its uid is equal."""

    def __init__(self, uid: str = "c", **meta: Any) -> None:
        requests = [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]
        self.claim: dict[str, Any] = {
            "metadata": {"name": "gpu", "namespace": "default", "uid": uid, "resourceVersion": "7", **meta},
            "spec": {"devices": {"requests": requests}},
        }
        self.calls: list[str] = []

    def get(self, path: str, query: Any = None) -> bytes:
        self.calls.append(f"GET {path.rpartition('/')[2]}")
        return json.dumps(self.claim if "resourceclaims" in path else {"spec": {}}).encode()

    def send(self, method: str, path: str, body: bytes = b"", *, content: str = "", **_: Any) -> bytes:
        self.calls.append(f"{method} {path.rpartition('/')[2]}")
        patch, meta = json.loads(body), self.claim["metadata"]
        if patch["metadata"]["uid"] != meta["uid"]:
            raise ApiFailure(409, "Conflict", "the uid differs")
        finalizers = patch["metadata"].get("finalizers", [])
        if finalizers and "deletionTimestamp" in meta:
            raise ApiFailure(422, "Invalid", "no finalizer can be added")
        assert not finalizers or content.startswith("application/strategic-merge-patch")
        meta["finalizers"] = list(dict.fromkeys([*meta.get("finalizers", []), *finalizers]))
        self.claim |= {"status": patch["status"]} if "status" in patch else {}
        return json.dumps(self.claim).encode()


def binding(node: str = "n1") -> BindingRequest:
    return BindingRequest(1, "default", "p", "u", node, device_claims=("gpu",), devices=(GRANT,))


def allocated(server: ClaimServer, *, node: str = "n1", is_ours: bool = True) -> BindingOutcome | None:
    return allocate(cast(Api, server), binding(node), is_ours=lambda: is_ours)


def test_unallocated_claim_is_not_read() -> None:
    server = ClaimServer(finalizers=["example.com/other"])
    assert allocated(server) is None
    assert server.calls == ["PATCH gpu", "GET gpu", "PATCH status"]  # claim, class, claim
    assert server.claim["metadata"]["finalizers"] == ["example.com/other", FINALIZER]
    assert server.claim["status"]["reservedFor"] == [{"resource": "pods", "name": "p", "uid": "u"}]


def test_claim_of_an_unassigned_pod_gets_no_devices() -> None:
    server = ClaimServer()
    outcome = allocated(server, is_ours=False)
    assert outcome is not None
    assert outcome.result is BindingResult.UNKNOWN
    assert "status" not in server.claim


def test_deleted_claim_gets_no_devices() -> None:
    server = ClaimServer(deletionTimestamp="2026-01-01T00:00:00Z")
    outcome = allocated(server)
    assert outcome is not None
    assert outcome.result is BindingResult.REFUSED
    assert "is being deleted" in str(outcome.message)
    assert "status" not in server.claim


def test_other_claim_with_the_same_name_gets_no_devices() -> None:
    server = ClaimServer(uid="another")
    outcome = allocated(server)
    assert outcome is not None
    assert outcome.result is BindingResult.REFUSED
    assert "finalizers" not in server.claim["metadata"]


def test_allocation_with_the_devices_of_the_decision_is_kept() -> None:
    server = ClaimServer()
    assert allocated(server) is None
    first = server.claim["status"]
    assert allocated(server) is None
    assert server.claim["status"] is first


def test_allocation_for_another_node_is_withdrawn() -> None:
    """All nodes can access the device; the release of the allocation for node n1 has failed."""
    server = ClaimServer()
    assert allocated(server) is None
    outcome = allocated(server, node="n2")
    assert outcome is not None
    assert outcome.result is BindingResult.REFUSED
    assert str(outcome.message) == "claim gpu is allocated with the node selector of another decision"
    release(cast(Api, server), binding("n2"))
    assert server.claim["status"] == {"reservedFor": None, "allocation": None}
