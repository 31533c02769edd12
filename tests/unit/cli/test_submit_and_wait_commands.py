"""`hetsched submit` and `wait`: exit codes for CI, safe repetition."""

from pathlib import Path

import httpx
import pytest

from tests.builders import a_pod
from tests.unit.cli.answering import Server, a_workload
from tests.unit.cli.calling import document, run, workload_file

ACCEPTED = {"id": "w-1", "state": "pending", "pods": [{"pod": "default/web", "state": "pending"}]}
WORKLOADS, ONE = "/api/v1/workloads/", "/api/v1/workloads/w-1/"


def test_submit_sends_files_unchanged_and_prints_the_id(server: Server, tmp_path: Path) -> None:
    server.answers("POST", WORKLOADS, ACCEPTED, status=202)
    pods = workload_file(tmp_path, a_pod("web"))
    result = run("submit", "-f", pods, "--policy", "spread", "--priority", "7", "--token", "hs_secret")
    assert result.exit_code == 0
    assert "w-1" in result.stdout
    assert server.body() == {"manifest": pods.read_text(), "policy": "spread", "priority": 7}
    assert server.asked[0].headers["Authorization"] == "Bearer hs_secret"


def test_runs_have_unique_keys_or_the_given_one(server: Server, tmp_path: Path) -> None:
    server.answers("POST", WORKLOADS, ACCEPTED, status=202)
    pods = workload_file(tmp_path, a_pod("web"))
    for options in ([], [], ["--idempotency-key", "build-42"]):
        assert run("submit", "-f", pods, *options).exit_code == 0
    keys = [request.headers["Idempotency-Key"] for request in server.asked]
    assert len(set(keys)) == 3
    assert keys[2] == "build-42"


@pytest.mark.parametrize("key", ["", " ", "schlüssel", "a b", "a\nb", "x" * 256])
def test_invalid_key_is_reported_before_any_request(server: Server, tmp_path: Path, key: str) -> None:
    result = run("submit", "-f", workload_file(tmp_path, a_pod("web")), "--idempotency-key", key)
    assert (result.exit_code, server.asked) == (2, [])
    assert result.stderr.startswith("error [IdempotencyKeyInvalid]")


def test_broken_connection_is_retried_with_the_same_key(server: Server, tmp_path: Path) -> None:
    server.answers("POST", WORKLOADS, httpx.ReadError("reset"), ACCEPTED, status=202)
    assert run("submit", "-f", workload_file(tmp_path, a_pod("web"))).exit_code == 0
    first, second = (request.headers["Idempotency-Key"] for request in server.asked)
    assert first == second


def test_several_files_are_one_submission(server: Server, tmp_path: Path) -> None:
    server.answers("POST", WORKLOADS, ACCEPTED, status=202)
    trace = tmp_path / "pods.csv"
    trace.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\nopenb-pod-0000,1000,1024,1,500\n")
    pods = workload_file(tmp_path, a_pod("web"))
    assert run("submit", "-f", pods, "-f", trace).exit_code == 0
    manifest = server.body()["manifest"]
    assert '"name":"web"' in manifest
    # A trace among other objects is sent as its pods.
    assert '"name":"openb-pod-0000"' in manifest
    assert "hetsched.io/gpu-milli" in manifest


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("placed", 0),
        ("running", 0),
        ("not-now", 10),
        ("never-fits", 11),
        ("misconfigured", 12),
        ("failed", 14),
        ("cancelled", 14),
    ],
)
def test_submit_and_wait_give_the_verdict(server: Server, tmp_path: Path, state: str, code: int) -> None:
    server.answers("POST", WORKLOADS, ACCEPTED, status=202)
    server.answers("GET", ONE, a_workload("pending"), a_workload(state))
    result = run("submit", "-f", workload_file(tmp_path, a_pod("web")), "--wait", "-o", "json")
    assert result.exit_code == code
    assert document(result)["state"] == state


@pytest.mark.parametrize(
    ("goal", "states", "code"),
    [
        ("running", ["placed", "placed", "running"], 0),
        ("finished", ["running", "succeeded"], 0),
        ("finished", ["running", "failed"], 14),
        ("running", ["not-now"], 10),
    ],
)
def test_wait_continues_until_the_goal(server: Server, goal: str, states: list[str], code: int) -> None:
    server.answers("GET", ONE, *(a_workload(state) for state in states))
    assert run("wait", "w-1", "--for", goal).exit_code == code


def test_wait_option_retries_without_capacity(server: Server) -> None:
    server.answers("GET", ONE, a_workload("not-now"), a_workload("not-now"), a_workload("placed"))
    assert run("wait", "w-1").exit_code == 10
    server.answers("GET", ONE, a_workload("not-now"), a_workload("not-now"), a_workload("placed"))
    assert run("wait", "w-1", "--patient").exit_code == 0


def test_timeout_exits_13_with_the_last_state(server: Server) -> None:
    server.answers("GET", ONE, a_workload("pending"))
    result = run("wait", "w-1", "--timeout", "0", "-o", "json")
    assert result.exit_code == 13
    assert document(result)["state"] == "pending"
    assert "after 0 s" in result.stderr


def test_wait_uses_the_wait_parameter(server: Server) -> None:
    server.answers("GET", ONE, a_workload("placed"), a_workload("running"))
    run("wait", "w-1", "--for", "running", "--timeout", "300")
    asked = [(request.url.params["for"], request.url.params["wait"]) for request in server.asked]
    assert asked == [("placed", "30"), ("running", "30")]


def test_submit_may_wait_for_a_later_goal(server: Server, tmp_path: Path) -> None:
    server.answers("POST", WORKLOADS, ACCEPTED, status=202)
    server.answers("GET", ONE, a_workload("placed"), a_workload("running"), a_workload("failed"))
    assert run("submit", "-f", workload_file(tmp_path, a_pod("web")), "--for", "finished").exit_code == 14


def test_wait_survives_a_server_restart(server: Server) -> None:
    away = httpx.ConnectError("refused")
    server.answers("GET", ONE, a_workload("pending"), *[away] * 7, a_workload("placed"))
    assert run("wait", "w-1").exit_code == 0


def test_unreachable_server_is_not_retried(server: Server) -> None:
    server.answers("GET", ONE, httpx.ConnectError("refused"))
    assert run("wait", "w-1").exit_code == 3


def test_pipeline_watch_prints_changes_with_their_time(server: Server) -> None:
    server.answers("GET", ONE, a_workload("pending"), a_workload("placed"), a_workload("running"))
    result = run("wait", "w-1", "--for", "running", "--watch", "-o", "json")
    assert result.exit_code == 0
    assert document(result)["state"] == "running"
    said = [line.split("  ", 1)[1] for line in result.stderr.splitlines()]
    assert said == [
        "w-1: pending",
        "default/web: pending",
        "w-1: pending -> placed",
        "default/web: pending -> placed on n1",
        "w-1: placed -> running",
        "default/web: placed -> running on n1",
    ]


def test_cancel_sends_its_reason_and_waits_for_deletion(server: Server) -> None:
    server.answers("DELETE", ONE, a_workload("running"))
    server.answers("GET", ONE, a_workload("running"), a_workload("cancelled"))
    result = run("cancel", "w-1", "--reason", "superseded", "--wait")
    assert result.exit_code == 0
    assert "cancelled" in result.stdout
    assert server.asked[0].url.params["reason"] == "superseded"


def test_cancel_that_is_not_seen_through_in_time_is_13(server: Server) -> None:
    server.answers("DELETE", ONE, a_workload("running"))
    server.answers("GET", ONE, a_workload("running"))
    assert run("cancel", "w-1", "--wait", "--timeout", "0").exit_code == 13


def test_retry_sends_the_etag_of_the_workload(server: Server) -> None:
    server.answers("GET", ONE, a_workload("not-now"), ETag='"seen"')
    server.answers("POST", f"{ONE}actions/", a_workload("pending"))
    assert run("retry", "w-1", "--reason", "a node came back").exit_code == 0
    assert server.body() == {"action": "retry", "reason": "a node came back"}
    assert server.asked[-1].headers["If-Match"] == '"seen"'
