"""The agent's sender with a faulty server: no report is lost, and no call waits indefinitely."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hetsched.agent.options import Reporting
from hetsched.agent.sender import Sender
from hetsched.agent.uplink import LONGEST_PAUSE_SECONDS, Pause, Uplink, UplinkFailure
from hetsched.contracts.messages.agent_message import AgentMessage, digest_of
from hetsched.contracts.messages.agent_report import AgentReport, MachineIsa, PinnedContainer

REPORT = AgentReport("n1", MachineIsa("x86", "x86-64-v3"), (), (), ())
GOOD = {"cluster": "lab", "node": "n1", "epoch": 3, "key": "", "reportWithinSeconds": 3600}
WANTED = {**GOOD, "problems": [{"code": "ReportWanted", "message": "", "about": ""}]}
Answer = tuple[int, dict[str, str], Any]


class Server:
    """A control plane on loopback; `answers` are used one by one, the last one repeatedly."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [(200, {}, GOOD)]
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.came = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.came:
                    status, headers, document = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                    outer.asked.append((self.path, dict(self.headers), body))
                    outer.came.notify_all()
                if status == 0:  # close without a response
                    self.close_connection = True
                    return
                data = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def wait(self, number: int) -> list[Any]:
        """Return the first messages once that many arrived."""
        with self.came:
            assert self.came.wait_for(lambda: len(self.asked) >= number, 20), self.asked
            return [body for _, _, body in self.asked[:number]]


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    thread = threading.Thread(target=found.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield found
    found.http.shutdown()
    found.http.server_close()


@pytest.fixture
def uplink(server: Server) -> Iterator[Uplink]:
    found = Uplink(server.url, lambda: "hs_secret", cluster="lab", call_seconds=5)
    yield found
    found.close()


def message(sequence: int = 1) -> AgentMessage:
    return AgentMessage("n1", "i", "2026-11-21T10:00:00Z", sequence, digest_of(REPORT), REPORT)


def failing(uplink: Uplink) -> UplinkFailure:
    with pytest.raises(UplinkFailure) as caught:
        uplink.send(message())
    return caught.value


def test_message_is_sent_with_the_token(server: Server, uplink: Uplink) -> None:
    assert uplink.send(message()).epoch == 3
    ((path, headers, body),) = server.asked
    assert (path, headers["Authorization"]) == ("/api/v1/agent/reports/?cluster=lab", "Bearer hs_secret")
    assert msgspec.convert(body, AgentMessage) == message()


def test_closed_keep_alive_connection_is_reopened(server: Server, uplink: Uplink) -> None:
    uplink.send(message())
    server.answers = [(0, {}, b""), (200, {}, GOOD)]
    assert uplink.send(message(2)).node == "n1"
    assert [body["sequence"] for _, _, body in server.asked] == [1, 2, 2]


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        ((307, {"Location": "http://127.0.0.1:1/"}, b""), 307, "Redirected"),
        ((403, {}, {"code": "NodeNotYours", "detail": "no"}), 403, "NodeNotYours"),
        ((502, {}, b"<html>"), 502, "Status502"),
        ((200, {}, b"<html>"), 200, "AnswerMalformed"),
        ((200, {}, [1]), 200, "AnswerMalformed"),
        ((200, {}, b'{"cluster": "\xff"}'), 200, "AnswerMalformed"),
        ((503, {}, b'{"code": "\xff"}'), 503, "Status503"),
    ],
)
def test_invalid_response_is_a_failure(server: Server, uplink: Uplink, answer: Answer, status: int, code: str) -> None:
    server.answers = [answer]
    failure = failing(uplink)
    assert (failure.status, failure.code) == (status, code)
    assert len(server.asked) == 1  # it follows no redirect


def test_missing_server_is_a_failure() -> None:
    assert failing(Uplink("http://127.0.0.1:9", lambda: "hs_x")).code == "ServerUnreachable"


def test_token_is_read_for_each_request(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    options = Reporting(server.url, token_file=file)
    uplink = Uplink(options.server, options.bearer)
    uplink.send(message())
    file.write_text("two")
    uplink.send(message(2))
    assert [headers["Authorization"] for _, headers, _ in server.asked] == ["Bearer one", "Bearer two"]
    file.write_text("two\r\nX-Evil: 1")
    assert failing(uplink).code == "TokenUnreadable"
    uplink.close()


def test_pauses_double_and_vary_and_heed_the_server() -> None:
    lost = UplinkFailure(0, "ServerUnreachable", "")
    longest, shortest = Pause(lambda: 1.0), Pause(lambda: 0.0)
    assert [longest.after(lost) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert [shortest.after(lost) for _ in range(3)] == [0.5, 1, 2]
    longest.reset()
    assert longest.after(UplinkFailure(429, "ReportTooSoon", "", 7)) == 7
    assert longest.after(UplinkFailure(503, "x", "", 99_999)) == LONGEST_PAUSE_SECONDS


@pytest.fixture
def sending(uplink: Uplink) -> Iterator[Callable[[], Sender]]:
    made: list[Sender] = []

    def make() -> Sender:
        pause = Pause(lambda: -1.0)  # no time at all
        made.append(Sender(uplink, instance="i", started_at="2026-11-21T10:00:00Z", pause=pause))
        made[-1].start()
        return made[-1]

    yield make
    for sender in made:
        sender.stop()


def test_report_is_repeated_until_acknowledged(server: Server, sending: Callable[[], Sender]) -> None:
    server.answers = [(503, {}, {"code": "StorageUnavailable"}), (0, {}, b""), (200, {}, GOOD)]
    sender = sending()
    sender.send_report(REPORT)
    bodies = server.wait(3)
    assert [body["report"] is not None for body in bodies] == [True, True, True]
    # Rejected, then a kept connection is closed, and the call is repeated immediately on a new one.
    assert [body["sequence"] for body in bodies] == [1, 2, 2]


def test_first_answer_is_reported_once(
    server: Server, sending: Callable[[], Sender], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="hetsched.agent")
    sender = sending()
    sender.send_report(REPORT)
    server.wait(1)
    sender.send_pinned((PinnedContainer("u", "c", "0-1", "0-1"),))
    server.wait(2)
    sender.stop()
    assert [record.getMessage() for record in caplog.records] == ["reported as node 'n1'"]


def test_rejected_facts_are_reported_when_they_change(
    server: Server, sending: Callable[[], Sender], caplog: pytest.LogCaptureFixture
) -> None:
    doubtful = GOOD | {"problems": [{"code": "FactQuarantined", "message": "cards 7: 8 are known"}]}
    server.answers = [(200, {}, doubtful), (200, {}, doubtful), (200, {}, GOOD)]
    sender = sending()
    for number in range(1, 4):
        sender.send_pinned((PinnedContainer("u", "c", "0-1", str(number)),)) if number > 1 else sender.send_report(
            REPORT
        )
        server.wait(number)
    sender.stop()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "quarantined facts, waiting for a review: cards 7: 8 are known",
        "quarantined facts, waiting for a review: none",
    ]


def test_server_without_state_gets_a_full_report(server: Server, sending: Callable[[], Sender]) -> None:
    server.answers = [(200, {}, GOOD), (200, {}, WANTED), (200, {}, GOOD)]
    sender = sending()
    sender.send_report(REPORT)
    server.wait(1)
    sender.send_pinned((PinnedContainer("u", "c", "0-1", "0-1"),))
    bodies = server.wait(3)
    assert bodies[2]["report"]["node"] == "n1"


def test_superseded_agent_ends(server: Server, sending: Callable[[], Sender]) -> None:
    server.answers = [(409, {}, {"code": "AgentSuperseded", "detail": ""})]
    sender = sending()
    sender.send_report(REPORT)
    until = time.monotonic() + 20
    while not sender.superseded and time.monotonic() < until:
        time.sleep(0.01)
    assert sender.superseded
