"""Tests have their own folders and no variables of the product."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.isolation import isolated

ROOT = Path(__file__).resolve().parents[3]


def test_test_process_has_its_own_home() -> None:
    assert Path.home().name.startswith("hetsched-tests-")
    assert Path(os.environ["HETSCHED_DATA"]).is_relative_to(Path.home())


def test_variables_of_the_product_are_dropped() -> None:
    user = {
        "PATH": "/bin", "HOME": "/home/ada", "XDG_CACHE_HOME": "/cache", "HETSCHED_HTTPS": "on", "SECRET_KEY": "x",
        "HETSCHED_TEST_SEED": "7", "HETSCHED_NO_KUBE": "no Go",
    }  # fmt: skip
    assert isolated(user, Path("/tmp/home")) == {
        "PATH": "/bin", "HOME": "/tmp/home", "HETSCHED_DATA": "/tmp/home/data", "HETSCHED_TEST_PROGRAMS": "/cache",
        "HETSCHED_TEST_SEED": "7", "HETSCHED_NO_KUBE": "no Go",
    }  # fmt: skip


def test_runs_share_bytecode_outside_the_source_tree() -> None:
    home = Path("/tmp/home")
    dropped = isolated({"PYTHONDONTWRITEBYTECODE": "1"}, home)
    assert "PYTHONDONTWRITEBYTECODE" not in dropped
    assert dropped["PYTHONPYCACHEPREFIX"] == str(ROOT / ".tools/bytecode")
    chosen = isolated({"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/var/bytecode"}, home)
    assert chosen["PYTHONPYCACHEPREFIX"] == "/var/bytecode"
    assert "PYTHONPYCACHEPREFIX" not in isolated({}, home)


def test_files_of_an_earlier_server_do_not_affect_tests(tmp_path: Path) -> None:
    """A standalone server leaves collected files, whose manifest gives every static file another name."""
    static = tmp_path / ".local/state/hetsched/static"
    static.mkdir(parents=True)
    manifest = '{"paths": {"img/mark.svg": "img/mark.0123.svg"}, "version": "1.1", "hash": "0"}'
    (static / "staticfiles.json").write_text(manifest)
    words = ["-q", "-p", "no:cacheprovider", "tests/pages/test_error_pages.py"]
    environment = {**os.environ, "HOME": str(tmp_path)}
    for name in ("HETSCHED_DATA", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert list(tmp_path.rglob("*.sqlite3")) == []
