"""A test whose external program is missing is skipped with a message, and fails with CI set.

A test that the kernel of the machine forbids is skipped with the failed check, in CI too.
"""

from collections import Counter
from pathlib import Path

import pytest

from tests import parts
from tests.kube.node_kubelet import missing_controller


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(parts, "FOLDERS", {})
    monkeypatch.setattr(parts, "skipped", Counter())


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("value", ["", "false", "0"])
def test_without_ci_the_test_is_skipped_and_counted(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", value)

    with pytest.raises(pytest.skip.Exception, match="apt-get install postgresql"):
        parts.require("postgres")

    assert parts.skipped == {"postgres": 1}


@pytest.mark.usefixtures("nothing_installed")
def test_missing_program_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")

    with pytest.raises(pytest.fail.Exception, match="chromium is not installed"):
        parts.require("chromium")


# -- machines that cannot run a kubelet --------------------------------------------------------------------------------


def test_forbidden_part_is_skipped_in_ci_and_its_check_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(parts, "forbidden", Counter())

    with pytest.raises(pytest.skip.Exception, match="kubelet cannot run on this machine: no cpuset"):
        parts.skip_forbidden("kubelet", "no cpuset")

    assert parts.forbidden == {"kubelet: no cpuset": 1}


def test_controller_that_is_not_delegated_is_named(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")

    assert missing_controller(tmp_path) == (
        f"cgroup v2 controller cpuset is not delegated ({tmp_path}/cgroup.controllers): enable it in the parent cgroup"
    )


def test_controllers_that_cannot_be_enabled_are_named(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu cpuset memory pids\n")
    (tmp_path / "cgroup.subtree_control").mkdir()  # writing fails, as in a cgroup that has processes

    assert missing_controller(tmp_path).startswith("cgroup v2 controllers cannot be enabled")


def test_missing_controllers_of_version_1_are_named(tmp_path: Path) -> None:
    for name in ("cpu", "memory", "pids"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()

    assert missing_controller(tmp_path) == f"cgroup v1 controller cpuset is not mounted ({tmp_path}/cpuset): mount it"


def test_complete_machines_have_no_missing_controller(tmp_path: Path) -> None:
    first, second = tmp_path / "v1", tmp_path / "v2"
    for name in ("cpu", "cpuset", "memory", "pids", "cpuacct"):
        (first / name).mkdir(parents=True)
        (first / name / "cgroup.procs").touch()
    second.mkdir()
    (second / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")

    assert (missing_controller(first), missing_controller(second)) == ("", "")
    assert (second / "cgroup.subtree_control").read_text() == "+cpu +cpuset +memory +pids"
