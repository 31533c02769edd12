"""Programs that the agent runs belong to root, get no environment, and cannot block it."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest

from hetsched.agent.programs import MAX_OUTPUT_BYTES, is_root_owned, run


def test_output_and_exit_status_are_returned() -> None:
    outcome = run(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"])
    assert outcome is not None
    assert (outcome.status, outcome.output) == (3, "out\nerr\n")


def test_signal_is_a_negative_status() -> None:
    outcome = run(["/bin/sh", "-c", "kill -ILL $$"])
    assert outcome is not None
    assert outcome.status == -4


@pytest.mark.parametrize(
    "script", ["sleep 60", "sleep 60 & echo started", "yes", "trap '' TERM; sleep 60", "exec >&- 2>&-; sleep 60"]
)
def test_endless_or_verbose_program_is_killed_with_its_children(script: str) -> None:
    begun = time.monotonic()
    assert run(["/bin/sh", "-c", script], seconds=0.3) is None
    assert time.monotonic() - begun < 30  # it did not wait for the minute


def test_program_gets_no_environment_and_no_core_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    before = resource.getrlimit(resource.RLIMIT_CORE)
    outcome = run(["/bin/sh", "-c", "echo ${SECRET:-none}; ulimit -c; pwd"])
    assert outcome is not None
    assert outcome.output.split() == ["none", "0", "/"]
    assert resource.getrlimit(resource.RLIMIT_CORE) == before


def test_missing_program_returns_none() -> None:
    assert run(["/nonexistent/program"]) is None
    assert MAX_OUTPUT_BYTES > 0


def test_only_programs_writable_by_root_alone_are_run(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o777)
    assert not is_root_owned(str(program))
    assert not is_root_owned(str(tmp_path))
    assert not is_root_owned("/nonexistent")
    assert not is_root_owned("/dev/null")
    assert is_root_owned("/bin/sh") is (os.stat("/bin/sh").st_uid == 0)


def test_program_behind_a_writable_link_is_not_run(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours):
        folder.mkdir()
    theirs.chmod(0o777)
    (theirs / "sh").symlink_to("/bin/sh")
    (theirs / "bin").symlink_to("/bin")
    (ours / "sh").symlink_to("../theirs/sh")
    (ours / "round").symlink_to("round")
    for path in (theirs / "sh", theirs / "bin/sh", ours / "sh", ours / "round"):
        assert not is_root_owned(str(path))
    (ours / "good").symlink_to("/usr/../bin/sh")
    assert is_root_owned(str(ours / "good")) is (is_root_owned("/bin/sh") and os.getuid() == 0)
