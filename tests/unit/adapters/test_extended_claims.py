"""The claim for extended resources of a pod, and the decisions to which it belongs."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
import pytest

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.devices.allocation import allocate, release
from hetsched.adapters.kubernetes.devices.extended_claims import delete_extended_claim
from hetsched.adapters.kubernetes.pods.binding import BindingOutcome, BindingRequest, BindingResult
from hetsched.contracts.objects.allocation import ClaimedDevices, DeviceGrant, DeviceMapping, ExtendedClaim
from hetsched.contracts.objects.devices import DeviceId

EXTENDED = ExtendedClaim("c", (ClaimedDevices("r", "gpu", 1),), (DeviceMapping("main", "example.com/gpu", "r"),))


class ApiServer:
    """API server with one pod and the claim for its extended resources; `writes` lists the writes."""

    def __init__(self) -> None:
        self.claim: dict[str, Any] | None = None
        self.pod: dict[str, Any] = {"metadata": {"name": "p", "uid": "u"}, "status": {}}
        self.writes: list[str] = []
        self._version = 0

    @property
    def devices(self) -> list[str]:
        """The allocated devices of the claim."""
        allocation = (self.claim or {}).get("status", {}).get("allocation") or {"devices": {}}
        return [result["device"] for result in allocation["devices"].get("results", ())]

    def get(self, path: str, query: Any = None) -> bytes:
        if "/pods/" in path:
            return json.dumps(self.pod).encode()
        if "deviceclasses" in path:
            return b'{"spec": {}}'
        if self.claim is None:
            raise ApiFailure(404, "NotFound", "no claim")
        return json.dumps(self.claim).encode()

    def send(self, method: str, path: str, body: bytes = b"", **_: Any) -> bytes:
        sent = json.loads(body)
        if "/pods/" in path:
            self.writes.append("status of the pod")
            self.pod["status"] |= sent["status"]
            return json.dumps(self.pod).encode()
        self.writes.append(method)
        if method == "POST":
            sent["metadata"]["uid"] = f"claim-{self._version}"
            self.claim = sent
        elif self.claim is None:
            raise ApiFailure(404, "NotFound", "no claim")
        else:
            meta, stated = self.claim["metadata"], sent.get("preconditions", sent.get("metadata"))
            if (stated["uid"], stated["resourceVersion"]) != (meta["uid"], meta["resourceVersion"]):
                raise ApiFailure(409, "Conflict", "the claim has changed")
            if method == "DELETE":
                self.claim = None
                return b"{}"
            _merge(self.claim, sent)
        self._version += 1
        self.claim["metadata"]["resourceVersion"] = str(self._version)
        return json.dumps(self.claim).encode()


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(name, {}), value)
        else:
            target[name] = value


def binding(device: str = "gpu-0", node: str = "n1", **facts: Any) -> BindingRequest:
    """Return the binding of a decision that chose a device; with `node_terms=()`, all nodes can access it."""
    grant = DeviceGrant("c", "", "r", DeviceId("gpu.example.com", "fabric", device), **facts)
    return BindingRequest(1, "default", "p", "u", node, devices=(grant,), extended=EXTENDED)


def allocated(server: ApiServer, request: BindingRequest, **more: Any) -> BindingOutcome | None:
    return allocate(cast(Api, server), request, **more)


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.mark.parametrize("confirmed", [0, 1, 2])
def test_late_binding_writes_nothing(server: ApiServer, confirmed: int) -> None:
    """The lease is lost before the claim is created, before it is allocated, and before the pod names it."""
    answers = [True] * confirmed
    outcome = allocated(server, binding(), is_ours=lambda: bool(answers) and answers.pop())
    assert outcome is not None
    assert outcome.result is BindingResult.UNKNOWN
    assert server.writes == [[], ["POST"], ["POST", "PATCH", "PATCH"]][confirmed]


def test_late_binding_keeps_the_claim_of_a_later_decision(server: ApiServer) -> None:
    assert allocated(server, binding("gpu-1")) is None
    server.writes.clear()
    outcome = allocated(server, binding("gpu-0"), is_ours=lambda: False)
    assert outcome is not None
    assert outcome.result is BindingResult.UNKNOWN
    assert (server.writes, server.devices) == ([], ["gpu-1"])


def test_changed_claim_is_not_deleted(server: ApiServer) -> None:
    """A later decision replaces the claim between the read and the delete of an earlier one."""
    assert allocated(server, binding("gpu-0")) is None

    def replaced() -> bool:
        if server.devices == ["gpu-0"]:
            assert allocated(server, binding("gpu-1")) is None
        return True

    outcome = allocated(server, binding("gpu-2"), is_ours=replaced)
    assert outcome is not None
    assert outcome.result is BindingResult.WAITING
    assert server.devices == ["gpu-1"]


def test_refused_pod_keeps_the_claim_that_its_status_names(server: ApiServer) -> None:
    assert allocated(server, binding()) is None
    release(cast(Api, server), binding())
    assert server.claim is not None
    assert server.claim["status"] == {}
    named = server.claim["metadata"]["uid"]
    assert allocated(server, binding("gpu-1")) is None
    assert (server.claim["metadata"]["uid"], server.devices) == (named, ["gpu-1"])


@pytest.mark.parametrize(
    ("uid", "name"), [("u", ""), ("u", "other"), ("another", "c")], ids=["no claim", "another claim", "another pod"]
)
def test_refused_pod_without_the_claim_in_its_status_loses_the_claim(server: ApiServer, uid: str, name: str) -> None:
    assert allocated(server, binding()) is None
    server.pod["metadata"]["uid"] = uid
    server.pod["status"] = {"extendedResourceClaimStatus": {"resourceClaimName": name}} if name else {}
    release(cast(Api, server), binding())
    assert server.claim is None


@pytest.mark.parametrize(("node_terms", "replaced"), [(None, True), ((), False)], ids=["bound to its node", "any node"])
def test_allocation_for_another_node_is_replaced(
    server: ApiServer, node_terms: tuple[()] | None, replaced: bool
) -> None:
    """All nodes can access the device; a device with `bindsToNode` is bound to one node while it is allocated."""
    assert allocated(server, binding(node_terms=node_terms)) is None
    server.writes.clear()
    assert allocated(server, binding(node="n2", node_terms=node_terms)) is None
    assert ("POST" in server.writes) is replaced
    assert server.claim is not None
    selector = server.claim["status"]["allocation"].get("nodeSelector")
    nodes = selector and selector["nodeSelectorTerms"][0]["matchFields"][0]["values"]
    assert nodes == (["n2"] if replaced else None)
    server.writes.clear()
    assert allocated(server, binding(node="n2", node_terms=node_terms)) is None
    assert server.writes == ["status of the pod"]


def test_late_result_deletes_only_the_claim_of_its_decision(server: ApiServer) -> None:
    assert allocated(server, binding("gpu-1")) is None
    delete_extended_claim(cast(Api, server), binding("gpu-0"), EXTENDED)
    assert server.devices == ["gpu-1"]
    delete_extended_claim(cast(Api, server), binding("gpu-1"), msgspec.structs.replace(EXTENDED, requests=()))
    assert server.devices == ["gpu-1"]
    delete_extended_claim(cast(Api, server), binding("gpu-1"), EXTENDED)
    assert server.claim is None
