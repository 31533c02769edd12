"""Isolate the test process before Django reads its settings.

pytest loads this plugin by `-p` in pyproject.toml, because conftest.py runs after pytest-django has read the settings.
The data, state, cache and configuration folders of the user are never read or written, and no environment variable of
the product reaches a test. `HETSCHED_TEST_*` sizes and `HETSCHED_NO_KUBE` are kept; `HETSCHED_TEST_PROGRAMS` names the
folder of the programs that `make kube` built. If PYTHONDONTWRITEBYTECODE is set, all processes of this checkout's runs
share bytecode in `.tools`, because a server imports 1,800 modules and would otherwise compile them at each start.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("HETSCHED_", "DJANGO_", "DATABASE_URL", "REDIS_URL", "SECRET_KEY", "ALLOWED_HOSTS", "CSRF_", "XDG_")
KEPT = ("HETSCHED_TEST_", "HETSCHED_NO_KUBE", "HETSCHED_WRITE_EXAMPLES", "HETSCHED_SHOTS")


def isolated(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the environment for tests: `home` as the parent of every user folder, and no variables of hetsched."""
    kept = {name: value for name, value in environment.items() if name.startswith(KEPT) or not name.startswith(PRODUCT)}
    user = Path(environment.get("HOME") or "/nonexistent")
    kept.setdefault("HETSCHED_TEST_PROGRAMS", environment.get("XDG_CACHE_HOME") or str(user / ".cache"))
    if kept.pop("PYTHONDONTWRITEBYTECODE", ""):
        kept.setdefault("PYTHONPYCACHEPREFIX", str(ROOT / ".tools/bytecode"))
    return kept | {"HOME": str(home), "HETSCHED_DATA": str(home / "data")}


def pytest_addoption() -> None:
    """Isolate this process. pytest calls this hook first, before pytest-django reads the settings."""
    home = Path(tempfile.mkdtemp(prefix="hetsched-tests-"))
    owner = os.getpid()
    environment = isolated(os.environ, home)
    os.environ.clear()
    os.environ.update(environment)
    if sys.dont_write_bytecode and "PYTHONDONTWRITEBYTECODE" not in environment:
        sys.dont_write_bytecode, sys.pycache_prefix = False, environment["PYTHONPYCACHEPREFIX"]

    def remove() -> None:
        if os.getpid() == owner:  # a forked child must not remove the folder of its parent
            shutil.rmtree(home, ignore_errors=True)

    atexit.register(remove)
