"""Find the external programs that some tests use.

A test against a real browser, database or message store needs that program. A program is looked up by its usual names
on PATH, then in Debian's folders.
If it is missing, the test is skipped with a reason. If CI is set, the test fails instead, so that a CI run cannot pass
without it. There are two exceptions. The Kubernetes API server and helm are built instead of installed: if the build
failed, HETSCHED_NO_KUBE contains the reason. A part that the kernel of the machine forbids is skipped, and the end of
the run names the failed check.
"""

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import NoReturn

import pytest

from tests.kube import control_plane

PROGRAMS = {
    "aarch64-linux-gnu-gcc": ("aarch64-linux-gnu-gcc",),
    "busybox": ("busybox",),
    "chromium": ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"),
    "containerd": ("containerd",),
    "etcd": ("etcd",),
    "gcc": ("gcc",),
    "helm": ("helm",),
    "kube-apiserver": ("kube-apiserver",),
    "kube-scheduler": ("kube-scheduler",),
    "kubelet": ("kubelet",),
    "kubelet_verdicts": ("kubelet_verdicts",),
    "node-exporter": ("prometheus-node-exporter", "node_exporter"),
    "postgres": ("postgres",),
    "prometheus": ("prometheus",),
    "qemu-riscv64-static": ("qemu-riscv64-static",),
    "redis-server": ("redis-server", "valkey-server"),
    "riscv64-linux-gnu-gcc": ("riscv64-linux-gnu-gcc",),
    "runc": ("runc",),
    "scheduler_verdicts": ("scheduler_verdicts",),
    "unshare": ("unshare",),
}
BUILT = {"helm", "kube-apiserver", "kube-scheduler", "kubelet", *control_plane.VERDICTS}
FOLDERS = {"postgres": ("/usr/lib/postgresql", "*/bin")}
PACKAGES = {  # Debian package that contains the program, if its name differs
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
    "busybox": "busybox-static",
    "etcd": "etcd-server",
    "node-exporter": "prometheus-node-exporter",
    "postgres": "postgresql",
    "qemu-riscv64-static": "qemu-user-static",
    "riscv64-linux-gnu-gcc": "gcc-riscv64-linux-gnu",
    "unshare": "util-linux",
}

MODULES = {"k8s.io/kubernetes"}  # Go modules whose source is read, from the module cache of the user

skipped: Counter[str] = Counter()  # by part: the tests of this run that were skipped because it is missing
forbidden: Counter[str] = Counter()  # by part and failed check: the tests that the kernel of this machine forbids


def find(part: str) -> Path | None:
    """Return the program of a part, the newest if Debian has several, or None if it is not installed.

    Raises: KeyError for a part that is not declared in PROGRAMS.
    """
    names = PROGRAMS[part]
    if part in BUILT:
        return control_plane.find(part)
    on_path = [found for name in names if (found := shutil.which(name))]
    if on_path:
        return Path(on_path[0])
    base, pattern = FOLDERS.get(part, ("/nonexistent", "*"))
    folders = sorted(Path(base).glob(pattern), key=lambda folder: _version(folder.parent.name), reverse=True)
    return next((folder / name for folder in folders for name in names if (folder / name).exists()), None)


def require(part: str) -> Path:
    """Return the program of a part; if it is missing, skip the calling test, or fail it in CI."""
    if program := find(part):
        return program
    reason = f"{part} is not installed; {advice(part)}"
    if in_ci() and not (part in BUILT and os.environ.get("HETSCHED_NO_KUBE")):
        pytest.fail(f"{reason}; with CI set every part must be there", pytrace=False)
    skipped[part] += 1
    pytest.skip(reason)


def skip_forbidden(part: str, check: str) -> NoReturn:
    """Skip the calling test, in CI too, because the kernel of this machine forbids to run a part; report the check."""
    forbidden[f"{part}: {check}"] += 1
    pytest.skip(f"{part} cannot run on this machine: {check}")


def require_module(module: str, version: str) -> Path:
    """Return the folder of a Go module's source; if it is not in the module cache, skip the calling test."""
    home = Path(os.environ.get("HETSCHED_TEST_PROGRAMS", Path.home() / ".cache")).parent  # see tests/isolation.py
    cache = Path(os.environ.get("GOMODCACHE") or Path(os.environ.get("GOPATH") or home / "go") / "pkg/mod")
    folder = cache / f"{module}@v{version}"
    if folder.is_dir():
        return folder
    skipped[module] += 1
    pytest.skip(f"{module} {version} is not in Go's module cache; {advice(module)}")


def advice(part: str) -> str:
    """Return how to install a missing part."""
    if part in MODULES:
        return f"get it with: go -C tests/kube mod download {part}"
    if part in BUILT:
        return "build it with: make kube (needs Go)"
    return f"get it with: apt-get install {PACKAGES.get(part, part)}"


def in_ci() -> bool:
    """Return whether CI is set to something other than no."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false", "no"}


def _version(text: str) -> int:
    return int(text) if text.isdigit() else 0
