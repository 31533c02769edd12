#!/usr/bin/env python3
"""Run a development target; every target first installs the locked packages (`requirements/installer.py`).

The script uses only the standard library and writes only to this folder and to caches.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from requirements.installer import BIN, ROOT, SetupError, relock, run, say, setup, step

CONTROL_PLANE = ROOT / "tests" / "kube" / "control_plane.py"

# Three workers on two cores, because many tests wait for other processes. The tests of a file share fixtures.
DISTRIBUTED = ("--numprocesses", "3", "--dist", "loadfile", "--no-loadscope-reorder")
# Tests that count words and modules, in seconds.
GUARDS = ("tests/unit/toolchain/test_language.py", "tests/unit/toolchain/test_structure.py")

# Each build of the documentation reads all pages, so that its warnings and its search index are complete.
SPHINX = ["-m", "sphinx", "-c", "docs", "--fresh-env", "--write-all", "--fail-on-warning", "--keep-going", "--quiet"]

OLDEST_PYTHON = (3, 11)


def become(*argv: str | Path) -> None:
    """Replace this process with the program, which then receives signals and sets the exit code."""
    os.chdir(ROOT)
    os.environ["PATH"] = os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)])
    os.execve(argv[0], [str(a) for a in argv], os.environ)


def start(*args: str) -> None:
    """Run all processes on this machine: web, workers, beat, message store, demo cluster"""
    setup()
    become(BIN / "hetsched", "standalone", *args)


def test(*args: str) -> None:
    """Run all tests that this machine supports; extra arguments go to pytest"""
    setup()
    if not args:
        build_kube()
        args = (*DISTRIBUTED, "--durations", "40")
    become(BIN / "python", "-m", "pytest", *args)


def chaos(*args: str) -> None:
    """Run the chaos tests at full size (hours); end with a table of faults, and exit with 1 if there is one"""
    setup()
    build_kube()
    args = args or DISTRIBUTED
    sizes = {
        "HETSCHED_TEST_KILLS": "200", "HETSCHED_TEST_LIVE_KILLS": "100", "HETSCHED_TEST_ALLOCATIONS": "1000",
        "HETSCHED_TEST_RACE_SECONDS": "120", "HETSCHED_TEST_NODES": "1000", "HETSCHED_TEST_PODS": "5000",
        "HETSCHED_TEST_CRASHES": "50", "HETSCHED_TEST_FAULT_SECONDS": "30", "HETSCHED_TEST_RACE_REPEATS": "10",
        "HETSCHED_TEST_UPGRADE_PODS": "100", "HETSCHED_TEST_UPGRADE_SECONDS": "15",
        "HETSCHED_TEST_UPGRADE_CLIENTS": "32",
        "HETSCHED_TEST_PROJECTION_KILLS": "10", "HETSCHED_TEST_CHANGE_ROUNDS": "100",
        "HETSCHED_TEST_DEVICE_CLAIMS": "20000",
    }  # fmt: skip
    os.environ.update({name: os.environ.get(name, size) for name, size in sizes.items()})
    become(BIN / "python", "-m", "pytest", "-m", "chaos", *args)


def fuzz(*args: str) -> None:
    """Fuzz each REST operation with 1,000 requests and each parser with 20,000 inputs (an hour or more)"""
    setup()
    sizes = {"HETSCHED_TEST_FUZZ_CASES": "1000", "HETSCHED_TEST_PARSER_CASES": "20000"}
    os.environ.update({name: os.environ.get(name, size) for name, size in sizes.items()})
    become(BIN / "python", "-m", "pytest", "--timeout", "0", "tests/fuzz", *args)


def properties(*args: str) -> None:
    """Run property tests with 20 times their number of examples (hours); arguments select files"""
    setup()
    os.environ["HETSCHED_TEST_EXAMPLES"] = os.environ.get("HETSCHED_TEST_EXAMPLES", "20")
    become(
        BIN / "python", "-m", "pytest", "-m", "hypothesis", "--timeout", "0", *(args or ("tests/unit", "tests/apps"))
    )


def gauntlet(*args: str) -> None:
    """Run mutation tests: inject known scheduler bugs one by one and check that a test fails"""
    setup()
    build_kube()
    become(BIN / "python", "-m", "tests.gauntlet.run", *args)


def matrix(*args: str) -> None:
    """Run tests of live clusters on every supported version of the Kubernetes API server (builds them first)"""
    setup()
    become(BIN / "python", "-m", "tests.kube.matrix", *args)


def differential(*args: str) -> None:
    """Compare hetsched with kube-scheduler's and the kubelet's own code on random cases (an hour); see --help"""
    setup()
    become(BIN / "python", "-m", "tests.differential", *args)


def upstream(*args: str) -> None:
    """Run Kubernetes' own scheduling tests with kube-scheduler and with hetsched (hours); see --help"""
    setup()
    pinned = re.search(r"k8s.io/kubernetes v(\S+)", (ROOT / "tests" / "upstream" / "go.mod").read_text())
    assert pinned is not None
    os.environ["HETSCHED_TEST_KUBERNETES"] = pinned[1]  # the tests need an API server of their version
    become(BIN / "python", "-m", "tests.upstream", *args)


def release(*args: str) -> None:
    """Build all artefacts of HEAD into dist/: wheel, chart, manual pages, bill of materials, checksums; see --help"""
    setup()
    become(BIN / "python", "-m", "deploy.release", *args)


def mutations(*args: str) -> None:
    """Apply random mutations to the product one by one and count those that a test notices; see --help"""
    setup()
    become(BIN / "python", "-m", "tests.mutations.run", *args)


def screenshots(*args: str) -> None:
    """Create the screenshots of the docs; --all DIR covers all pages, themes, languages and widths"""
    setup()
    become(BIN / "python", "-m", "tests.browser.screenshots", *args)


def fast(*args: str) -> None:
    """Run only tests/unit"""
    setup()
    become(BIN / "python", "-m", "pytest", "tests/unit", *args)


def lint(*args: str) -> None:
    """Check style, imports, types, generated pages, Django, missing migrations, language and structure"""
    setup()
    packages = [name for name in ("hetsched", "web", "workers") if (ROOT / name / "__init__.py").exists()]
    checks = {
        "ruff": ["ruff", "check", "."],
        "format": ["ruff", "format", "--check", "."],
        "imports": ["lint-imports"],
        "types": ["mypy", *packages],
        "django": ["python", "manage.py", "check"],
        "docs": ["hetsched", "docs", "--check"],
        "migrations": ["python", "manage.py", "makemigrations", "--check", "--dry-run"],
        "guards": ["python", "-m", "pytest", "-q", "-p", "no:randomly", *GUARDS],
    }
    failed = []
    for name, (program, *rest) in checks.items():
        say(f"lint: {name}")
        if subprocess.run([BIN / program, *rest], cwd=ROOT, check=False).returncode:
            failed.append(name)
    if failed:
        raise SetupError(f"lint failed: {', '.join(failed)}")
    say("lint: all clean")


def audit(*args: str) -> None:
    """Check the locked packages for known vulnerabilities and write their bill of materials"""
    setup()
    become(BIN / "python", "-m", "tests.audit", *args)


def fmt(*args: str) -> None:
    """Format the code and apply automatic fixes"""
    setup()
    run(BIN / "ruff", "check", "--fix", "--quiet", ".")
    run(BIN / "ruff", "format", ".")


def kube(*args: str) -> None:
    """Build kube-apiserver, helm and other programs of the tests unless present (needs Go)"""
    if not build_kube():
        raise SetupError("kube-apiserver or helm is missing; see the message above")


def kube_up(*args: str) -> None:
    """Run a Kubernetes control plane on loopback until Ctrl-C"""
    build_kube()
    become(sys.executable, CONTROL_PLANE, "up")


def build_kube() -> bool:
    """Build kube-apiserver and helm unless present; return whether both are available."""
    with step("Checking for kube-apiserver and helm, building missing ones (some minutes, once)"):
        return subprocess.run([sys.executable, CONTROL_PLANE, "build"], cwd=ROOT, check=False).returncode == 0


def bench(*args: str) -> None:
    """Run the engine benchmarks; extra arguments go to `hetsched bench`"""
    setup()
    become(BIN / "hetsched", "bench", *(args or ["engine"]))


def docs(*args: str) -> None:
    """Build the documentation site in build/docs; warnings are errors, extra arguments go to sphinx-build"""
    setup()
    run(BIN / "python", *SPHINX, *args, ".", "build/docs", why="building the documentation")
    say("Documentation: build/docs/index.html")


def load(*args: str) -> None:
    """Run the load tests against real processes, on SQLite and PostgreSQL (half an hour); see --help"""
    setup()
    become(BIN / "python", "-m", "tests.load.run", *args)


def soak(*args: str) -> None:
    """Run the soak test: half an hour of load with killed processes; checks for losses and leaks"""
    setup()
    become(BIN / "python", "-m", "tests.load.run", "soak", *args)


def clean(*args: str) -> None:
    """Remove the files that dev.py and the tools created, except the data of local runs"""
    names = [".venv", ".tools", "build", "staticfiles", ".hypothesis", "hetsched.egg-info"]
    names += [".pytest_cache", ".mypy_cache", ".ruff_cache", ".import_linter_cache"]
    for name in names:
        shutil.rmtree(ROOT / name, ignore_errors=True)
    for cache in list(ROOT.rglob("__pycache__")):
        shutil.rmtree(cache, ignore_errors=True)


def set_up(*args: str) -> None:
    """Create .venv"""
    setup()


def lock(*args: str) -> None:
    """Resolve the locks; --upgrade updates every pin"""
    relock(*args)


TARGETS = {
    "run": start, "test": test, "fast": fast, "lint": lint, "fmt": fmt, "audit": audit, "chaos": chaos,
    "differential": differential, "gauntlet": gauntlet, "matrix": matrix, "mutations": mutations, "bench": bench,
    "upstream": upstream, "docs": docs, "release": release, "screenshots": screenshots, "setup": set_up, "lock": lock,
    "kube": kube, "kube-up": kube_up, "load": load, "soak": soak, "fuzz": fuzz, "properties": properties,
    "clean": clean,
}  # fmt: skip


def use_newer_python() -> None:
    """Re-execute this script with the newest suitable Python on PATH. Raises SetupError if there is none."""
    for minor in range(20, OLDEST_PYTHON[1] - 1, -1):
        newer = shutil.which(f"python3.{minor}")
        # Shims of version managers may exist on PATH without an installed Python.
        if newer and subprocess.run([newer, "-c", ""], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            os.execv(newer, [newer, *sys.argv])
    raise SetupError(f"Python 3.{OLDEST_PYTHON[1]} or newer is needed; this is {platform.python_version()}")


def main() -> int:
    try:
        if sys.version_info < OLDEST_PYTHON:
            use_newer_python()
        name, *args = sys.argv[1:] or ["help"]
        if name not in TARGETS:
            print("Usage: python3 dev.py TARGET [ARGUMENTS]\n")
            for target, function in TARGETS.items():
                print(f"  {target:11} {function.__doc__}")
            return 0 if name in {"help", "-h", "--help"} else 2
        TARGETS[name](*args)
    except SetupError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
