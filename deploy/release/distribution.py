"""The source distribution and the wheel, which is built from it."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from .archives import pack


def build_distributions(source: Path, out: Path, seconds: int) -> None:
    """Build both distributions of the exported tree `source` into `out`; their members have the time `seconds`.

    setuptools writes the time of the build into the source distribution, so it is packed again.
    """
    work = source.parent / "distributions"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(seconds), "PYTHONDONTWRITEBYTECODE": "1"}
    _run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(work), cwd=source, env=environment)
    (archive,) = work.glob("*.tar.gz")
    name = archive.name.removesuffix(".tar.gz")
    with tarfile.open(archive) as members:
        members.extractall(work, filter="data")
    pack(work / name, out / archive.name, name, seconds)
    words = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(out), str(work / name)]
    _run(sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", *words, cwd=work, env=environment)


def _run(*command: str, cwd: Path, env: dict[str, str]) -> None:
    subprocess.run(command, cwd=cwd, env=env, check=True, umask=0o022)
