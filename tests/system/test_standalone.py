"""`hetsched standalone` for a user: one command, a page, Ctrl-C, and the data is still there after a restart."""

from __future__ import annotations

import contextlib
import http.cookiejar
import itertools
import json
import os
import re
import signal
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hetsched.cli.server.standalone import RoundTrip
from tests.system.processes import ROOT, Process, children_of, free_port, plain_environment, python, wait_until

pytestmark = pytest.mark.timeout(300)


class Standalone:
    """The command on one data folder."""

    def __init__(
        self,
        data: Path,
        *words: str,
        env: dict[str, str] | None = None,
        program: Sequence[str] = python("-m", "hetsched.cli"),
        cwd: Path = ROOT,
    ) -> None:
        self.data = data
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [*program, "standalone", "--port", str(self.port), "--data", str(data), *words]
        self._starts = itertools.count()
        self._command, self._env, self._cwd = command, plain_environment() | (env or {}), cwd
        self.start()

    def start(self) -> None:
        """Start the command; the output of an earlier start is no longer that of this object."""
        log = self.data.parent / f"output-{self.port}-{next(self._starts)}"
        self.process = Process(self._command, env=self._env, log=log, cwd=self._cwd)

    def wait_until_ready(self) -> None:
        last_line = "stop        Ctrl-C"
        wait_until(lambda: last_line in self.said() or not self.process.running, what=self.said, seconds=120)
        assert self.process.running, self.said() + self.logs()

    def said(self) -> str:
        return self.process.said()

    def logs(self) -> str:
        return "\n".join(f"--- {log}\n{log.read_text()[-3000:]}" for log in self.data.glob("logs/*.log"))

    def password(self) -> str | None:
        found = re.search(r"password +(\S+)", self.said())
        return found[1] if found and "shown only once" in self.said() else None


@contextlib.contextmanager
def standalone(data: Path, *words: str, **options: Any) -> Iterator[Standalone]:
    run = Standalone(data, *words, **options)
    try:
        yield run
    finally:
        below = children_of(run.process.popen.pid)
        run.process.stop(signal.SIGINT)
        for pid in set(below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def log_in(url: str, password: str) -> urllib.request.OpenerDirector:
    """Log in as the administrator through the login page; the returned opener holds the session."""
    jar = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    browser.open(f"{url}/login/", timeout=20).read()
    csrf = next(cookie.value for cookie in jar if cookie.name == "csrftoken")
    form = {"username": "admin", "password": password, "csrfmiddlewaretoken": csrf, "next": "/"}
    headers = {"Origin": url, "Referer": f"{url}/login/"}
    request = urllib.request.Request(f"{url}/login/", urllib.parse.urlencode(form).encode(), headers)
    assert browser.open(request, timeout=20).url == f"{url}/"
    return browser


@pytest.fixture(scope="module")
def first_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone") / "data") as run:
        run.wait_until_ready()
        yield run


@pytest.fixture(scope="module")
def password(first_start: Standalone) -> str:
    """Return the password that the first start printed; a later start prints none."""
    printed = first_start.password()
    assert printed
    return printed


def test_first_page_and_probes(first_start: Standalone) -> None:
    assert status(f"{first_start.url}/") == 200  # the login page, after its redirect
    assert status(f"{first_start.url}/healthz") == 200
    assert status(f"{first_start.url}/readyz") == 200


def test_printed_password_opens_the_first_screen(first_start: Standalone, password: str) -> None:
    with log_in(first_start.url, password).open(f"{first_start.url}/", timeout=20) as page:
        assert page.status == 200
        assert "script-src 'self'" in page.headers["Content-Security-Policy"]


def test_password_is_nowhere_in_the_data(first_start: Standalone, password: str) -> None:
    kept = [file for file in first_start.data.rglob("*") if file.is_file() and "static" not in file.parts]
    assert kept
    for file in kept:
        with contextlib.suppress(FileNotFoundError):  # SQLite's own files come and go
            assert password.encode() not in file.read_bytes(), file


def test_demo_cluster_makes_progress(first_start: Standalone, password: str) -> None:
    browser = log_in(first_start.url, password)

    def decisions() -> int:
        with browser.open(f"{first_start.url}/api/v1/decisions/", timeout=20) as answer:
            return len(json.load(answer)["items"])

    wait_until(lambda: decisions() > 0, what=first_start.logs, seconds=60)


def test_secrets_belong_to_their_owner_only(first_start: Standalone) -> None:
    assert first_start.data.stat().st_mode & 0o077 == 0
    assert (first_start.data / "secret-key").stat().st_mode & 0o077 == 0


def test_second_server_on_the_same_data_is_rejected(first_start: Standalone) -> None:
    with standalone(first_start.data) as second:
        assert second.process.popen.wait(30) == 2
        assert "AlreadyRunning" in second.said()
        assert str(first_start.port) in second.said()


def test_killed_worker_is_restarted(first_start: Standalone) -> None:
    below = children_of(first_start.process.popen.pid)
    workers = [pid for pid in below if os.getpgid(pid) == pid and Path(f"/proc/{pid}/comm").read_text() == "worker\n"]
    os.kill(workers[0], signal.SIGKILL)
    wait_until(lambda: "worker exited (signal SIGKILL)" in first_start.said(), what="the notice")
    (socket_file,) = first_start.data.glob("store-*.sock")
    wait_until(RoundTrip(socket_file).done, what="a task of the restarted worker")
    wait_until(lambda: status(f"{first_start.url}/readyz") == 200, what="readiness")


def test_stop_and_second_start(first_start: Standalone, password: str) -> None:
    """The other tests continue on the second start."""
    run, data = first_start, first_start.data
    key = (data / "secret-key").read_text()
    wait_until(lambda: len(children_of(run.process.popen.pid)) >= 5, what="store, web, worker and its pool, beat")
    below = children_of(run.process.popen.pid)
    assert run.process.stop(signal.SIGINT, seconds=30) == 0
    assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []
    assert list(data.glob("*.sock")) == []
    run.start()
    run.wait_until_ready()
    assert run.password() is None
    assert "--reset-password" in run.said()
    assert (data / "secret-key").read_text() == key


def test_busy_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with standalone(tmp_path / "data", "--port", port) as run:
            assert run.process.popen.wait(30) == 2
            assert "PortBusy" in run.said()


def test_data_path_that_is_no_folder_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with standalone(file) as run:
        assert run.process.popen.wait(30) == 2
        assert "DataDirInvalid" in run.said()


def test_invalid_variable_exits_with_one_message(tmp_path: Path) -> None:
    with standalone(tmp_path / "data", env={"HETSCHED_LEASE_SECONDS": "soon"}) as run:
        assert run.process.popen.wait(60) == 2
        assert "HETSCHED_LEASE_SECONDS: 'soon' is not a whole number" in run.said()
        assert "Traceback" not in run.said()


def test_stop_while_starting(tmp_path: Path) -> None:
    with standalone(tmp_path / "data") as run:
        wait_until(lambda: "database" in run.said(), what=run.said)
        below = children_of(run.process.popen.pid)
        assert run.process.stop(signal.SIGINT) == 0
        assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []
