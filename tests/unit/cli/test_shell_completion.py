"""`hetsched completion`: the script for each shell, the offered words, and no output after errors."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.calling import run

CLUSTERS = [
    {"name": "demo", "kind": "demo"},
    {"name": "prod", "kind": 'live"); touch /tmp/never; (\\'},
    {"name": "$(touch /tmp/never)", "kind": "odd"},
]


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"items": CLUSTERS, "next": None}).encode()
        self.send_response(200 if self.headers.get("Authorization") == "Bearer hs_x" else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def offers(shell: str, line: str, **env: str) -> str:
    """Complete as the shell's own function does when TAB is pressed at the end of the line."""
    words = line.split(" ")
    asked = {
        "_HETSCHED_COMPLETE": f"complete_{shell}", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "hetsched.cli"], env={**os.environ, **asked, **env}, capture_output=True, text=True
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete -o default"), ("zsh", "#compdef hetsched"), ("fish", "complete --command")]
)
def test_each_shell_gets_its_script(shell: str, word: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert word in result.stdout
    assert "_HETSCHED_COMPLETE" in result.stdout


@pytest.mark.parametrize(("line", "wanted"), [("hetsched sub", "submit"), ("hetsched get wo", "workloads")])
def test_commands_and_kinds_are_offered(line: str, wanted: str) -> None:
    assert offers("bash", line).split() == [wanted]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_come_from_the_server_and_are_harmless(shell: str, address: str) -> None:
    found = offers(shell, "hetsched submit --cluster ", HETSCHED_SERVER=address, HETSCHED_TOKEN="hs_x")
    assert "demo" in found
    assert "prod" in found
    assert not set("$;\\`") & set(found)


@pytest.mark.parametrize(
    ("server", "token"), [("http://127.0.0.1:9", "hs_x"), ("", "hs_wrong"), ("no address", "hs_x")]
)
def test_completion_without_a_server_is_silent(server: str, token: str, address: str) -> None:
    found = offers("bash", "hetsched get clusters ", HETSCHED_SERVER=server or address, HETSCHED_TOKEN=token)
    assert found.strip() == ""


def test_bash_completes_with_the_printed_script(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not there")
    program = tmp_path / "hetsched"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m hetsched.cli "$@"\n')
    program.chmod(0o755)
    script = (
        "source <(hetsched completion bash); COMP_WORDS=(hetsched wai); COMP_CWORD=1; "
        '_hetsched_completion hetsched; echo "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.getcwd()}
    done = subprocess.run([bash, "--norc", "-c", script], env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["wait"], done.stderr
