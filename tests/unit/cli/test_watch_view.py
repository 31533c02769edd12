"""`--watch` on a terminal: redrawn in place, never wider or higher than the current size of the terminal."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from hetsched.cli import resources
from hetsched.cli.workloads.live import LiveView
from hetsched.cli.workloads.workload_view import view
from hetsched.client import Client, Workload
from tests.unit.cli.answering import a_workload

PODS = [
    {"pod": f"ml/train-{number}", "state": "running", "node": f"node-{number}", "message": None} for number in range(40)
]
PODS[33] = {"pod": "ml/train-33", "state": "never-fits", "node": None, "message": "no node has " + "v" * 300}


def workload(*pods: dict[str, Any], state: str = "pending") -> Workload:
    return Client.read_workload(a_workload(state, *pods))


def drawn(shown: LiveView[Workload], width: int, height: int) -> list[str]:
    out = Console(file=StringIO(), width=width, height=height, force_terminal=False)
    out.print(shown)
    return out.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(("width", "height"), [(120, 50), (40, 10), (20, 5), (10, 2)])
def test_view_fits_the_terminal(width: int, height: int) -> None:
    shown: LiveView[Workload] = LiveView(view)
    shown.now = workload(*PODS)
    lines = drawn(shown, width, height)
    assert len(lines) <= height
    assert max(len(line) for line in lines) <= width


def test_wide_columns_shrink_for_narrow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "console", lambda: Console(width=30, file=StringIO()))
    rows = [{"name": "a", "isa": "x" * 90, "state": "not-now"}, {"name": "b", "isa": "y", "state": "placed"}]
    # 30 columns, 2 after each of 3: name 4, state 7, so 13 are left for isa.
    lines = [line.plain for line in resources._lines(("name", "isa", "state"), rows, 9)]
    assert lines[:2] == ["name  isa            state  ", "a     xxxxxxxxxxxx…  not-now  "]
    assert all(len(line) <= 30 for line in lines)


def test_most_informative_columns_are_shown_first() -> None:
    lines = [line.plain for line in view(workload(*PODS), 8)]
    assert lines[2] == "40 pods: 1 never-fits, 39 running"
    assert lines[3].startswith("ml/train-33")
    assert lines[-1] == "and 36 more pods"
    assert [line.plain.split()[0] for line in view(workload(*PODS), 60)[3:]] == [pod["pod"] for pod in PODS]


class Answers(BaseHTTPRequestHandler):
    """Return the current state, and report whether it is unchanged."""

    now: Any = None

    def do_GET(self) -> None:
        body = json.dumps(type(self).now).encode()
        tag = f'"{hash(body)}"'
        same = self.headers.get("If-None-Match") == tag
        self.send_response(304 if same else 200)
        self.send_header("ETag", tag)
        self.send_header("Content-Length", "0" if same else str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if same else body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class Terminal:
    """A real terminal with the program in it."""

    def __init__(self, width: int, height: int, *words: str) -> None:
        self.master, slave = pty.openpty()
        self.resize(width, height)
        env = {**os.environ, "TERM": "xterm-256color"}
        env.pop("COLUMNS", None)
        env.pop("LINES", None)
        self.running = subprocess.Popen(
            [sys.executable, "-m", "hetsched.cli", *words], stdin=slave, stdout=slave, stderr=slave, env=env,
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.said = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while data := os.read(self.master, 65536):
                self.said += data.decode(errors="replace")
        except OSError:  # the program has left the terminal
            return

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def until(self, pattern: str, since: int = 0) -> str:
        end = time.monotonic() + 60
        while not re.search(pattern, self.said[since:]):
            assert time.monotonic() < end, self.said[-2000:]
            time.sleep(0.05)
        return self.said[since:]


def test_watch_view_follows_terminal_resizes(address: str) -> None:
    Answers.now = a_workload("pending", *PODS)
    terminal = Terminal(100, 30, "wait", "w-1", "--for", "running", "--watch", "--server", address)
    terminal.until(r"and \d+ more pods")
    assert "\x1b[" in terminal.said  # colour and moving, since it is a terminal
    before = len(terminal.said)
    terminal.resize(44, 12)
    terminal.until(r"and 3[3-6] more pods", since=before)
    Answers.now = a_workload("running", PODS[0])
    assert terminal.running.wait(60) == 0
    assert "running" in terminal.until(r"train-0 .*node-0", since=before)


def test_output_without_a_terminal_has_no_escape_sequences(address: str) -> None:
    Answers.now = a_workload("running", PODS[0])
    words = ("wait", "w-1", "--watch", "--server", address)
    done = subprocess.run([sys.executable, "-m", "hetsched.cli", *words], capture_output=True, text=True)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
