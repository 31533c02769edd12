"""Resolve the runtime lock for each platform, and name the packages that have no wheel there.

The package index of the user's pip settings is asked, as in the set-up of `dev.py`. Nothing is downloaded or installed.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import dev

# uv's names of the platforms of the image. The glibc of the image, Debian 12, is 2.36.
PLATFORMS = {
    "linux/amd64": "x86_64-manylinux_2_36",
    "linux/arm64": "aarch64-manylinux_2_36",
    "linux/riscv64": "riscv64-unknown-linux",
}
_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64", "linux/riscv64": "riscv64"}
_PIN = re.compile(r"^([a-z0-9][\w.-]*==[^\s;\\]+)(?: ; ([^\\\n]+?))? \\$", re.MULTILINE)


def report(lock: Path) -> dict[str, Any]:
    """Return for each platform the number of packages, those without a wheel, and those left out by a marker."""
    return {name: _resolve(lock.read_text(), name) for name in PLATFORMS}


def _resolve(lock: str, name: str) -> dict[str, Any]:
    pins = _PIN.findall(lock)
    wanted = [pin for pin, marker in pins if _applies(marker, name)]
    left_out = [pin for pin, marker in pins if "platform_machine" in marker and not _applies(marker, name)]
    with tempfile.TemporaryDirectory(prefix="hetsched-platform-") as folder:
        environment = Path(folder) / "environment"
        _uv("venv", "--quiet", "--python", sys.executable, str(environment))
        without = [] if _has_wheels(environment, name, wanted) else [
            pin for pin in wanted if not _has_wheels(environment, name, [pin])
        ]  # fmt: skip
    return {"packages": len(wanted), "without_wheel": without, "left_out": left_out}


def _applies(marker: str, name: str) -> bool:
    """Return whether a package with this marker is needed on a platform, for the Python version of the image."""
    from packaging.markers import Marker

    machine = {"platform_machine": _MACHINES[name], "sys_platform": "linux"}
    python = {"python_full_version": platform.python_version(), "platform_python_implementation": "CPython"}
    return not marker or Marker(marker).evaluate({**machine, **python})


def _has_wheels(environment: Path, name: str, pins: list[str]) -> bool:
    words = ["--dry-run", "--quiet", "--no-deps", "--only-binary", ":all:", "--python-platform", PLATFORMS[name]]
    return _uv("pip", "install", *words, "--python", str(environment / "bin" / "python"), *pins)


def _uv(*words: str) -> bool:
    program = [str(dev.find_uv()), *words]
    return subprocess.run(program, env=dev.uv_environment(), capture_output=True, check=False).returncode == 0
