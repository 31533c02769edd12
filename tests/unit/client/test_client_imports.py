"""Importing the client imports no framework, engine or terminal library."""

import subprocess
import sys

HEAVY = {"django", "celery", "numpy", "kubernetes", "typer", "yaml", "hetsched.engine", "hetsched.adapters"}


def test_client_imports_no_heavy_modules() -> None:
    script = (
        "import sys; from hetsched.client import Client; Client('http://hetsched.test').close(); "
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.stdout.strip() == "[]", ended.stderr
