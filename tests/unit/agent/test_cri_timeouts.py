"""Failures of a container runtime that is silent, incorrect, too verbose or gone: a reason in bounded time."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.agent.cri import Runtime, RuntimeFailure, _verbose
from tests.agent.fake_runtime import FakeRuntime


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeRuntime]:
    fake = FakeRuntime(tmp_path)
    fake.start()
    yield fake
    fake.stop()


def test_runtime_version_is_requested(fake: FakeRuntime) -> None:
    runtime = Runtime(fake.socket)
    assert runtime.version() == "fake v1"
    runtime.close()


def test_missing_runtime_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailure) as failure:
        Runtime(tmp_path / "none.sock").sandboxes()
    assert failure.value.away


def test_silent_runtime_times_out(tmp_path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "silent.sock"))
    server.listen()
    runtime = Runtime(tmp_path / "silent.sock", timeout_seconds=0.3)
    with pytest.raises(RuntimeFailure) as failure:
        runtime.sandboxes()
    assert failure.value.late or failure.value.away
    runtime.close()
    server.close()


def test_http_response_is_a_failure(tmp_path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "odd.sock"))
    server.listen()

    def answer() -> None:
        connection, _ = server.accept()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 1000)
        connection.close()

    thread = threading.Thread(target=answer)
    thread.start()
    runtime = Runtime(tmp_path / "odd.sock", timeout_seconds=2)
    with pytest.raises(RuntimeFailure):
        runtime.sandboxes()
    thread.join()
    runtime.close()
    server.close()


def test_oversized_response_is_rejected(fake: FakeRuntime) -> None:
    for number in range(20):
        fake.pod(f"p{number}", "x" * 1_000_000)
    runtime = Runtime(fake.socket)
    with pytest.raises(RuntimeFailure, match="RESOURCE_EXHAUSTED"):
        runtime.sandboxes()
    runtime.close()


def test_runtime_is_called_again_after_a_failure(fake: FakeRuntime) -> None:
    runtime = Runtime(fake.socket)
    fake.fail = {"Version": grpc.StatusCode.UNAVAILABLE}
    with pytest.raises(RuntimeFailure):
        runtime.version()
    fake.fail = {}
    assert runtime.version() == "fake v1"
    runtime.close()


def test_details_for_people_are_read_with_care() -> None:
    spec = {"linux": {"resources": {"cpu": {"cpus": "0-1"}}}}
    assert _verbose(json.dumps({"pid": 7, "runtimeSpec": spec})) == ("0-1", 7)
    assert _verbose(json.dumps({"pid": 7, "runtimeSpec": {"linux": {"namespaces": []}}})) == ("", 7)
    assert _verbose(json.dumps({"pid": True, "runtimeSpec": None})) == (None, None)
    assert _verbose("") == (None, None)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["pid", "runtimeSpec", "linux", "resources", "cpu", "cpus", "x"]), inner)
    ),
    max_leaves=12,
)


@given(st.text(max_size=20) | anything.map(json.dumps))
def test_malformed_container_details_are_tolerated(text: str) -> None:
    cpus, pid = _verbose(text)
    assert cpus is None or isinstance(cpus, str)
    assert pid is None or pid > 0
