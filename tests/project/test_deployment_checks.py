"""System checks report conflicting settings with an ID and a hint."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hetsched.project import checks


def ids(found: Any) -> list[str]:
    assert all(message.hint for message in found)
    return [message.id for message in found]


def test_key_must_be_shared_by_several_machines(settings: Any) -> None:
    settings.SECRET_KEY_GIVEN, settings.EMBEDDED, settings.DEBUG = False, False, False
    assert ids(checks.check_secret_key(None)) == ["hetsched.E001"]
    settings.SECRET_KEY_GIVEN = True
    assert not checks.check_secret_key(None)


def test_wildcard_host(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    assert ids(checks.check_hosts(None)) == ["hetsched.E002"]
    settings.ALLOWED_HOSTS = ["hetsched.example"]
    assert not checks.check_hosts(None)


def test_data_folder_that_cannot_be_written(settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings.EMBEDDED, settings.DATA_DIR = True, tmp_path / "new" / "folder"
    assert not checks.check_data_folder(None)
    monkeypatch.setattr("os.access", lambda *_: False)
    assert ids(checks.check_data_folder(None)) == ["hetsched.E003"]


def test_lease_shorter_than_the_sweep(settings: Any) -> None:
    settings.HETSCHED_LEASE_SECONDS, settings.HETSCHED_SWEEP_SECONDS = 3, 5
    assert ids(checks.check_lease(None)) == ["hetsched.W001"]


def test_misspelt_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETSCHED_LEASE_SECOND", "3")
    (warning,) = checks.check_variables(None)
    assert warning.id == "hetsched.W002"
    assert warning.hint == "Did you mean HETSCHED_LEASE_SECONDS?"


def test_secret_of_a_misspelt_variable_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETSCHED_PASSWORD", "canary")
    assert "canary" not in str(checks.check_variables(None))


def test_startup_checks_of_the_informer_do_not_import_the_console() -> None:
    script = """
import django, sys; django.setup()
from hetsched.project.management.commands.watch import Command
before = set(sys.modules)
command = Command()
command.check(tags=command.requires_system_checks)
print(len(before) > 500, sorted(name for name in set(sys.modules) - before if name.startswith("web")))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "True []", done.stderr
