"""Release of a shared claim while the other pod of the claim releases it too."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.devices.allocation import release
from hetsched.adapters.kubernetes.pods.binding import BindingRequest
from hetsched.contracts.objects.allocation import DeviceGrant
from hetsched.contracts.objects.devices import DeviceId

DEVICE = DeviceId("fabric.example.com", "fabric", "gpu-0")
GRANTS = (DeviceGrant(claim="shared", uid="c", request="gpu", device=DEVICE),)


class ClaimServer:
    """API server with one allocated claim; each of the first `conflicts` patches loses to a write of another pod."""

    def __init__(self, conflicts: int) -> None:
        self.users = [{"uid": "one"}, {"uid": "two"}]
        self.patches: list[Any] = []
        self._conflicts = conflicts

    def get(self, path: str, query: Any = None) -> bytes:
        status = {"reservedFor": self.users, "allocation": {"devices": {"results": []}}}
        metadata = {"name": "shared", "namespace": "default", "uid": "c", "resourceVersion": "7"}
        return json.dumps({"metadata": metadata, "spec": {}, "status": status}).encode()

    def send(self, method: str, path: str, body: bytes = b"", **_: Any) -> bytes:
        if self._conflicts:
            self._conflicts -= 1
            self.users = [user for user in self.users if user["uid"] == "two"]
            raise ApiFailure(409, "Conflict", "the object has been modified")
        self.patches.append(json.loads(body)["status"])
        return body


def release_two(server: ClaimServer) -> None:
    release(
        cast(Api, server), BindingRequest(1, "default", "p", "two", "n1", device_claims=("shared",), devices=GRANTS)
    )


def test_allocation_is_kept_for_the_other_pod() -> None:
    server = ClaimServer(conflicts=0)
    release_two(server)
    assert server.patches == [{"reservedFor": [{"uid": "one"}]}]


def test_last_pod_withdraws_the_allocation_after_a_conflict() -> None:
    server = ClaimServer(conflicts=1)
    release_two(server)
    assert server.patches == [{"reservedFor": None, "allocation": None}]


def test_repeated_conflicts_are_reported() -> None:
    server = ClaimServer(conflicts=99)
    with pytest.raises(ApiFailure, match="Conflict"):
        release_two(server)
