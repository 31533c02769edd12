"""`dev.py differential` and `dev.py matrix` check their arguments before they build programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.differential import __main__ as differential
from tests.kube import control_plane, matrix


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the programs that are built, and build none."""
    names: list[str] = []

    def build(programs: Sequence[str] = control_plane.PROGRAMS) -> None:
        names.extend(programs)
        raise control_plane.Unavailable("there is no Go")

    monkeypatch.setattr(control_plane, "build", build)
    monkeypatch.setattr(control_plane, "find", lambda program: None)
    return names


@pytest.mark.parametrize(
    ("command", "argument", "error"),
    [
        (differential.main, "foo", 'Unknown suite "foo" (SUITE): use scheduler, devices, kubelet.'),
        (differential.main, "--cases=0", "The number of cases is 0: use 1 or more."),
        (matrix.main, "1.33.0", 'Unknown version "1.33.0" (VERSION): use 1.34.4, 1.35.4,'),
    ],
)
def test_wrong_argument_ends_without_a_build(
    command: Callable[[Sequence[str]], int],
    argument: str,
    error: str,
    built: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        command([argument])
    assert ended.value.code == 2
    assert error in capsys.readouterr().err
    assert not built


def test_only_the_program_of_the_suite_is_built(built: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert differential.main(["kubelet"]) == 1
    assert built == [control_plane.KUBELET_VERDICTS]
    assert "there is no Go" in capsys.readouterr().err


def test_present_program_is_not_built(monkeypatch: pytest.MonkeyPatch, built: list[str]) -> None:
    monkeypatch.setattr(control_plane, "find", lambda program: Path("/bin") / program)
    assert control_plane.built("scheduler_verdicts") == Path("/bin/scheduler_verdicts")
    assert not built
