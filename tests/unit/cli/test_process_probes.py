"""Probes distinguish a hanging process from one that waits for its message store."""

import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hetsched.cli.server import health
from hetsched.journal.heartbeat import WATCH_READY
from tests.unit.cli.calling import run


@pytest.fixture
def heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HETSCHED_DATA", str(tmp_path))
    (tmp_path / "pulse").mkdir()
    return tmp_path / "pulse"


def touch_heartbeat(heartbeats: Path, name: str, seconds_ago: float) -> None:
    (heartbeats / name).touch()
    then = time.time() - seconds_ago
    os.utime(heartbeats / name, (then, then))


@pytest.mark.parametrize("name", ["worker", "beat", "watch"])
def test_process_with_a_recent_heartbeat_is_healthy(heartbeats: Path, name: str) -> None:
    touch_heartbeat(heartbeats, name, 5)
    assert run("health", name).exit_code == 0


@pytest.mark.parametrize("name", ["beat", "watch"])
def test_process_without_a_recent_heartbeat_is_unhealthy(heartbeats: Path, name: str) -> None:
    assert "no heartbeat" in run("health", name).stderr
    touch_heartbeat(heartbeats, name, 3600)
    done = run("health", name)
    assert (done.exit_code, " for 36" in done.stderr) == (1, True)


@pytest.mark.parametrize(("answers", "code"), [(True, 1), (False, 0)])
def test_silent_worker_is_unhealthy_only_while_its_store_responds(
    heartbeats: Path, monkeypatch: pytest.MonkeyPatch, answers: bool, code: int
) -> None:
    touch_heartbeat(heartbeats, "worker", 3600)
    monkeypatch.setattr(health, "_store_answers", lambda: answers)
    assert run("health", "worker").exit_code == code


class Answers(BaseHTTPRequestHandler):
    """A running informer process without a cluster."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/livez" else 503)
        self.end_headers()
        self.wfile.write(b"1 of 1 live clusters are not followed")

    def log_message(self, *_: object) -> None:
        pass


def test_web_process_is_probed() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = server.server_address[1]
        alive = run("health", "web", "--port", port)
        unready = run("health", "web", "--port", port, "--component", "watch")
        server.shutdown()
        thread.join()
    assert alive.exit_code == 0
    assert (unready.exit_code, "1 of 1" in unready.stderr) == (1, True)
    assert run("health", "web", "--port", port).exit_code == 1


def test_remote_server_is_probed_until_healthy() -> None:
    class Late(Answers):
        """A server whose watch component becomes healthy with the second request."""

        requests = 0

        def do_GET(self) -> None:
            Late.requests += 1
            self.send_response(200 if Late.requests > 1 and self.path == "/readyz?component=watch" else 503)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Late) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        late = run("health", "web", "--server", url, "--component", "watch", "--wait", 30)
        unready = run("health", "web", "--server", url, "--wait", 0)
        server.shutdown()
        thread.join()
    assert (late.exit_code, unready.exit_code) == (0, 1)


@pytest.mark.parametrize("words", [("web", "--server", "ftp://host"), ("worker", "--server", "http://host")])
def test_server_that_cannot_be_probed_is_invalid(words: tuple[str, ...]) -> None:
    result = run("health", *words)
    assert (result.exit_code, "[OptionInvalid] --server" in result.stderr) == (2, True)


def test_watch_is_ready_after_listing_its_clusters(heartbeats: Path) -> None:
    touch_heartbeat(heartbeats, "watch", 1)
    waiting = run("health", "watch", "--ready")
    assert (waiting.exit_code, "not all clusters were listed" in waiting.stderr) == (1, True)
    touch_heartbeat(heartbeats, WATCH_READY, 29)
    assert run("health", "watch", "--ready").exit_code == 0
    touch_heartbeat(heartbeats, WATCH_READY, 31)
    assert run("health", "watch", "--ready").exit_code == 1
    assert run("health", "watch").exit_code == 0


def test_only_watch_has_a_readiness_check(heartbeats: Path) -> None:
    touch_heartbeat(heartbeats, "beat", 1)
    refused = run("health", "beat", "--ready")
    assert (refused.exit_code, "OptionInvalid" in refused.stderr) == (2, True)
