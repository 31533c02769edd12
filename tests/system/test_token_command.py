"""`hetsched token create` on the server's machine, against a real database file."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.system.databases import copy_prepared_sqlite
from tests.system.processes import ROOT, plain_environment, python


def hetsched(data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = plain_environment() | {"HETSCHED_DATA": str(data)}
    return subprocess.run(python("-m", "hetsched.cli", *words), env=env, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("token") / "data"
    folder.mkdir()
    copy_prepared_sqlite(folder)
    return folder


def test_command_prints_only_the_token(data: Path) -> None:
    done = hetsched(data, "token", "create", "--role", "submitter", "--namespace", "team-a", "--namespace", "team-b")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hs_")
    assert done.stdout.count("\n") == 1
    with sqlite3.connect(data / "hetsched.sqlite3") as database:
        (namespaces,) = database.execute("SELECT namespaces FROM access_token ORDER BY created DESC").fetchone()
    assert json.loads(namespaces) == ["team-a", "team-b"]


def test_json(data: Path) -> None:
    done = hetsched(data, "token", "create", "--role", "viewer", "--name", "dashboard", "-o", "json")
    document = json.loads(done.stdout)
    assert (document["role"], document["name"], document["namespaces"]) == ("viewer", "dashboard", [])
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--role", "root"], "RoleUnknown"),
        (["--role", "viewer", "--namespace", "../x"], "NamespaceInvalid"),
        (["--role", "viewer", "--days", "91"], "OptionInvalid"),
        ([], "OptionMissing"),
    ],
)
def test_invalid_options_are_rejected(data: Path, words: list[str], code: str) -> None:
    done = hetsched(data, "token", "create", *words)
    assert done.returncode == 2
    assert code in done.stderr
    assert done.stdout == ""


def test_missing_database_is_reported(tmp_path: Path) -> None:
    done = hetsched(tmp_path / "empty", "token", "create", "--role", "viewer")
    assert done.returncode == 2
    assert "DatabaseNotReady" in done.stderr
    assert "name the data folder" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "empty").rglob("hetsched.sqlite3*"))  # no empty database is left


def test_unused_data_folder_is_unchanged(tmp_path: Path) -> None:
    done = hetsched(tmp_path, "token", "create", "--role", "viewer", "--data", str(tmp_path / "mistyped"))
    assert done.returncode == 2
    assert "DatabaseNotReady" in done.stderr
    assert list(tmp_path.iterdir()) == []
