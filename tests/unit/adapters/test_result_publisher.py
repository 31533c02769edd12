"""Results that one thread publishes on many pods, against a server on loopback with prepared responses."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from hetsched.adapters.kubernetes import parallel_calls
from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.parallel_calls import ParallelCalls
from hetsched.adapters.kubernetes.pods import result_publisher
from hetsched.adapters.kubernetes.pods.pod_events import LONGEST_NOTE, PodResult
from hetsched.adapters.kubernetes.pods.result_publisher import ResultPublisher
from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from tests.prepared_server import CLOSE, CONFLICT, END, OK, SILENT, PreparedServer, prepared_server, response

EVENTS = "/apis/events.k8s.io/v1/namespaces/web/events"
BUSY = response(503, {"reason": "ServiceUnavailable"})
LIMITED = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 60\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture(params=["plain", "tls"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PreparedServer]:
    with prepared_server(tmp_path if request.param == "tls" else None) as listening:
        yield listening


@pytest.fixture
def api(server: PreparedServer) -> Api:
    return server.client()


def bound(name: str, pod_id: int = 1) -> PodResult:
    return PodResult(pod_id, 0x1F, "web", name, f"0123456789-{name}", Verdict.PLACED, f"{name} fits", "n1")


def pending(name: str, verdict: Verdict = Verdict.NOT_NOW, **more: Any) -> PodResult:
    return PodResult(2, 0x2F, "web", name, f"9876543210-{name}", verdict, "no node", **more)


def status_path(name: str) -> str:
    return f"/api/v1/namespaces/web/pods/{name}/status"


def publisher(api: Api, *results: PodResult, at_once: int = 16) -> ResultPublisher:
    return ResultPublisher(api, results, instance="host/1", at_once=at_once)


def each_result(publishing: ResultPublisher) -> Iterator[tuple[PodResult, bool]]:
    return chain.from_iterable(publishing.publish())


def publish(api: Api, *results: PodResult, at_once: int = 16) -> dict[str, bool]:
    with publisher(api, *results, at_once=at_once) as publishing:
        found = {result.name: is_published for result, is_published in each_result(publishing)}
        assert publishing.is_done
    return found


def calls_of(server: PreparedServer) -> list[tuple[str, str]]:
    return [(call.method, call.path) for call in server.received]


def bodies(server: PreparedServer) -> list[Any]:
    return [json.loads(call.body) for call in server.received]


def pods_with_events(server: PreparedServer) -> list[str]:
    return [body["regarding"]["name"] for body in bodies(server) if body.get("kind") == "Event"]


def test_bound_pod_gets_one_event(server: PreparedServer, api: Api) -> None:
    assert publish(api, bound("a")) == {"a": True}
    assert [(call.method, call.path, call.content) for call in server.received] == [
        ("POST", EVENTS, "application/json")
    ]
    (event,) = bodies(server)
    assert event.pop("eventTime").endswith("Z")
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "a.01234567.1f.s"},
        "reportingController": "hetsched.io/scheduler",
        "reportingInstance": "host/1",
        "action": "Binding",
        "reason": "Scheduled",
        "type": "Normal",
        "note": "Successfully assigned web/a to n1 (a fits)",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "web", "name": "a", "uid": "0123456789-a"},
    }


def test_condition_is_written_before_the_event(server: PreparedServer, api: Api) -> None:
    assert publish(api, pending("a", nominated="n7")) == {"a": True}
    assert calls_of(server) == [("PATCH", status_path("a")), ("POST", EVENTS)]
    assert server.received[0].content == "application/strategic-merge-patch+json"
    patch, event = bodies(server)
    (condition,) = patch["status"]["conditions"]
    assert condition.pop("lastTransitionTime")[-1] == "Z"
    assert condition == {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "Unschedulable: no node",
    }
    assert patch["metadata"] == {"uid": "9876543210-a"}
    assert patch["status"]["nominatedNodeName"] == "n7"
    found = {name: event[name] for name in ("action", "reason", "type", "note")}
    assert found == {"action": "Scheduling", "reason": "FailedScheduling", "type": "Warning", "note": "no node"}


def test_condition_without_nomination_clears_the_nominated_node(server: PreparedServer, api: Api) -> None:
    publish(api, pending("a"))
    assert bodies(server)[0]["status"]["nominatedNodeName"] is None


def test_long_messages_are_shortened(server: PreparedServer, api: Api) -> None:
    long = Message("{text}", text="é" * 2000)
    publish(api, PodResult(2, 1, "web", "a", "u" * 36, Verdict.PLACED, long))
    patch, event = bodies(server)
    (condition,) = patch["status"]["conditions"]
    assert condition["message"] == ("NotBound: " + "é" * 2000)[:LONGEST_NOTE]
    assert (condition["reason"], event["note"]) == ("SchedulerError", "é" * LONGEST_NOTE)


@pytest.mark.parametrize("status", [400, 403, 404, 409, 422])
def test_final_failure_of_the_condition_ends_the_pod(server: PreparedServer, api: Api, status: int) -> None:
    server.responses = {status_path("a"): response(status, {"reason": "Fault"})}
    assert publish(api, pending("a"), pending("b")) == {"a": True, "b": True}
    assert pods_with_events(server) == ["b"]


@pytest.mark.parametrize("answer", [LIMITED, BUSY, response(500, {}), response(401, {})])
def test_temporary_failure_is_published_again_later(server: PreparedServer, api: Api, answer: bytes) -> None:
    server.responses = {status_path("a"): answer, EVENTS: [answer]}
    since = time.monotonic()
    assert publish(api, pending("a"), bound("b"), at_once=1) == {"a": False, "b": False}
    assert calls_of(server) == [("PATCH", status_path("a")), ("POST", EVENTS)]
    assert time.monotonic() - since < 10


def test_event_failure_after_the_condition_is_published_again_later(server: PreparedServer, api: Api) -> None:
    server.responses = {EVENTS: [BUSY]}
    assert publish(api, pending("a")) == {"a": False}
    assert publish(api, pending("a")) == {"a": True}


def test_existing_event_counts_as_published(server: PreparedServer, api: Api) -> None:
    server.responses = {EVENTS: CONFLICT}
    assert publish(api, bound("a"), pending("b")) == {"a": True, "b": True}


def test_busy_server_fails_each_pod_once(server: PreparedServer, api: Api) -> None:
    server.responses = {EVENTS: LIMITED}
    names = [f"p{number}" for number in range(100)]
    assert publish(api, *map(bound, names)) == dict.fromkeys(names, False)
    assert (len(server.received), server.connections) == (100, 16)


def test_calls_behind_an_announced_close_are_sent_again(server: PreparedServer, api: Api) -> None:
    server.responses = {EVENTS: [OK, CLOSE, OK, CLOSE]}
    names = [f"p{number}" for number in range(40)]
    assert publish(api, *map(bound, names)) == dict.fromkeys(names, True)
    assert sorted(pods_with_events(server)) == sorted(names)


def test_calls_on_a_broken_connection_are_published_later(
    server: PreparedServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_publisher, "PODS_PER_CONNECTION", 100)
    server.responses = {EVENTS: [OK, END]}
    found = publish(api, *map(bound, "abcdefgh"), at_once=4)
    assert [found[name] for name in "abcdefgh"] == [True, False, False, False, True, True, True, True]
    server.responses = {EVENTS: [CONFLICT]}  # the server has processed the first of these calls
    assert publish(api, *map(bound, "bcd"), at_once=4) == {"b": True, "c": True, "d": True}


def test_silent_server_ends_the_run(server: PreparedServer, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_calls, "READ_SECONDS", 0.2)
    monkeypatch.setattr(result_publisher, "START_SECONDS", 0.1)
    monkeypatch.setattr(result_publisher, "_WAIT_SECONDS", 0.05)
    server.responses = {EVENTS: SILENT}
    with publisher(api, *(bound(f"p{number}") for number in range(40))) as publishing:
        found = {result.name: is_published for result, is_published in each_result(publishing)}
        assert not publishing.is_done
    assert found == {f"p{number}": False for number in range(16)}
    assert api.wire.take_idle() is None


def test_caller_is_called_while_no_response_arrives(
    server: PreparedServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_publisher, "_WAIT_SECONDS", 0.05)
    server.released.clear()
    with publisher(api, bound("a")) as publishing:
        lists = publishing.publish()
        assert [next(lists), next(lists)] == [[], []]
        server.released.set()
        assert [result.name for result, _ in chain.from_iterable(lists)] == ["a"]


def test_unreachable_server_fails_all_results(server: PreparedServer, api: Api) -> None:
    server.refuse_connections()
    assert publish(api, bound("a"), pending("b"), bound("c")) == {"a": False, "b": False, "c": False}
    assert server.received == []


def test_server_that_becomes_unreachable_fails_the_remaining_results(
    server: PreparedServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_publisher, "PODS_PER_CONNECTION", 100)
    server.responses = {EVENTS: [OK, CLOSE]}
    with publisher(api, *map(bound, "abcd"), at_once=1) as publishing:
        results = each_result(publishing)
        found = [next(results)]
        server.refuse_connections()
        found += results
        assert publishing.is_done
    assert [(result.name, is_published) for result, is_published in found] == [
        ("a", True), ("b", True), ("c", False), ("d", False),
    ]  # fmt: skip


def test_results_use_open_connections_if_no_other_opens(
    server: PreparedServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.send("POST", "/first", b"{}")
    server.refuse_connections()
    names = [f"p{number}" for number in range(40)]
    assert publish(api, *map(bound, names)) == dict.fromkeys(names, True)
    assert server.connections == 1


def test_connections_are_reused_by_the_next_publisher(server: PreparedServer, api: Api) -> None:
    names = [f"p{number}" for number in range(40)]
    for _ in range(3):
        assert publish(api, *map(bound, names)) == dict.fromkeys(names, True)
    assert server.connections == 7


def test_pods_are_published_one_at_a_time(server: PreparedServer, api: Api) -> None:
    with publisher(api, bound("a"), pending("b"), bound("c"), at_once=1) as publishing:
        for count, (result, _) in enumerate(each_result(publishing), 1):
            assert result.name == "abc"[count - 1]
            assert pods_with_events(server) == list("abc")[:count]
    assert server.connections == 1


def test_at_most_the_given_number_of_pods_is_in_flight(server: PreparedServer, api: Api) -> None:
    server.released.clear()
    with publisher(api, *(bound(f"p{number}") for number in range(40))) as publishing:
        publishing._fill(may_start=True)
        assert publishing._calls.in_flight == 16
    server.released.set()


def test_ended_publisher_starts_no_further_pods(server: PreparedServer, api: Api) -> None:
    with publisher(api, *map(pending, "abcdef"), at_once=2) as publishing:
        results = each_result(publishing)
        found = [next(results)]
        publishing.ends = True
        found += results
        assert not publishing.is_done
    assert sorted(result.name for result, _ in found) == sorted(pods_with_events(server))
    assert {"a", "b"} <= {result.name for result, _ in found} <= {"a", "b", "c"}


class CredentialProgram:
    """Hook of a configuration that runs a program for credentials."""

    def __init__(self, *, fails: bool) -> None:
        self.runs = 0
        self.fails = fails

    def __call__(self, configuration: object) -> None:
        if self.may_block():
            self.runs += 1
        if self.fails:
            raise InputError("ExecFailed", "the program failed", hint="Run it")

    def may_block(self) -> bool:
        return not self.runs

    def reject(self) -> None:
        self.runs = 0


def test_credential_is_renewed_before_the_calls(server: PreparedServer, api: Api) -> None:
    program = CredentialProgram(fails=False)
    api._configuration.refresh_api_key_hook = program  # type: ignore[assignment]
    assert publish(api, bound("a"), pending("b")) == {"a": True, "b": True}
    assert program.runs == 1


def test_rejected_credential_is_renewed_for_later_pods(server: PreparedServer, api: Api) -> None:
    program = CredentialProgram(fails=False)
    api._configuration.refresh_api_key_hook = program  # type: ignore[assignment]
    server.responses = {EVENTS: [response(401, {})]}
    assert publish(api, bound("a"), bound("b"), at_once=1) == {"a": False, "b": True}


def test_failed_credential_program_fails_all_results(server: PreparedServer, api: Api) -> None:
    program = CredentialProgram(fails=True)
    api._configuration.refresh_api_key_hook = program  # type: ignore[assignment]
    assert publish(api, bound("a"), bound("b")) == {"a": False, "b": False}
    assert (program.runs, server.received) == (1, [])


def test_blocking_calls_replace_parallel_ones_that_cannot_start(
    server: PreparedServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ParallelCalls, "start", lambda *_, **__: False)
    server.responses = {EVENTS: [OK, BUSY]}
    assert publish(api, pending("a"), bound("b")) == {"a": False, "b": True}
    assert calls_of(server)[0] == ("PATCH", status_path("a"))


def test_shadow_mode_publishes_nothing(server: PreparedServer) -> None:
    assert publish(server.client(reads=True), bound("a"), pending("b")) == {"a": True, "b": True}
    assert server.received == []
