"""Responses of an API server to an eviction, and their meaning for the victim and its preemptor."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import ApiFailure
from hetsched.adapters.kubernetes.pods.eviction import (
    EvictionResponse,
    EvictionResult,
    EvictionTarget,
    evict,
    mark_victim,
)

VICTIM = EvictionTarget(7, "team", "low", "uid-1", "Preempted by team/high (priority 5)")


class Server:
    """A fake API server that gives one response to all calls, and records them."""

    def __init__(self, failure: ApiFailure | None = None) -> None:
        self.failure = failure
        self.calls: list[tuple[str, str, dict[str, Any]]] = []

    def send(self, method: str, path: str, body: bytes = b"", **_: Any) -> bytes:
        self.calls.append((method, path, json.loads(body)))
        if self.failure is not None:
            raise self.failure
        return b"{}"


def answered(*failure: Any) -> EvictionResponse:
    return evict(Server(ApiFailure(*failure) if failure else None), VICTIM)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        ((), EvictionResult.ASKED),
        ((404, "NotFound", "no such pod"), EvictionResult.GONE),
        (
            (409, "Conflict", "the UID in the precondition (a) does not match the UID in record (b)"),
            EvictionResult.GONE,
        ),
        ((409, "Conflict", "the object has been modified"), EvictionResult.UNKNOWN),
        ((429, "TooManyRequests", "would violate the budget", 0.0, ("DisruptionBudget",)), EvictionResult.REFUSED),
        # A budget that was just changed and is not counted yet; a violated one has no Retry-After.
        ((429, "TooManyRequests", "would violate the budget", 10.0, ("DisruptionBudget",)), EvictionResult.UNKNOWN),
        ((429, "TooManyRequests", "the server is busy", 3.0), EvictionResult.UNKNOWN),
        (
            (500, "InternalError", "This pod has more than one PodDisruptionBudget"),
            EvictionResult.REFUSED,
        ),
        ((500, "InternalError", "etcd is away"), EvictionResult.UNKNOWN),
        ((403, "Forbidden", "no"), EvictionResult.REFUSED),
        ((422, "Invalid", "no"), EvictionResult.REFUSED),
        ((503, "ServiceUnavailable", "no"), EvictionResult.UNKNOWN),
        ((0, "Unreachable", "no answer"), EvictionResult.UNKNOWN),
    ],
)
def test_eviction_response_gives_its_result(failure: tuple[Any, ...], expected: EvictionResult) -> None:
    assert answered(*failure).result is expected


def test_busy_server_returns_retry_after() -> None:
    assert answered(429, "TooManyRequests", "busy", 3.0).retry_after_seconds == 3.0


def test_eviction_has_a_uid_precondition_and_no_grace_period() -> None:
    server = Server()
    evict(server, VICTIM)  # type: ignore[arg-type]
    evict(server, VICTIM, only_ask=True)  # type: ignore[arg-type]
    (method, path, body), (_, _, asked) = server.calls
    assert (method, path) == ("POST", "/api/v1/namespaces/team/pods/low/eviction")
    assert body["deleteOptions"] == {"preconditions": {"uid": "uid-1"}}
    assert asked["deleteOptions"] == {"preconditions": {"uid": "uid-1"}, "dryRun": ["All"]}


def test_unwritable_events_are_dropped() -> None:
    server = Server(ApiFailure(404, "NotFound", "gone already"))
    mark_victim(server, VICTIM, now="2026-11-21T10:00:00.000000Z", instance="host/1")  # type: ignore[arg-type]
    (_, _, status), (_, path, event) = server.calls
    assert status["metadata"] == {"uid": "uid-1"}
    assert status["status"]["conditions"][0]["type"] == "DisruptionTarget"
    assert (path, event["reason"], event["note"]) == (
        "/apis/events.k8s.io/v1/namespaces/team/events", "Preempted", VICTIM.sentence,
    )  # fmt: skip
