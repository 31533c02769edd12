#!/usr/bin/env python3
"""Set up this checkout and run a development target.

A minimal Debian 12 has Python 3.11 without pip, venv and make, and PEP 668 forbids pip in the system's site-packages.
Therefore uv installs everything into `.venv`. The script uses the uv on PATH, or else downloads the version pinned in
requirements/bootstrap.lock with pip: that of Python, the wheel bundled with ensurepip, or Debian's wheel unpacked into
`.tools`. It skips the set-up while the stamp in `.venv`, a hash of the locks and pyproject.toml, matches.

The script uses only the standard library and writes only to this folder and to caches. Every Python package is checked
against a hash in requirements/. The package index is the one that the user configured for pip or uv.
"""

from __future__ import annotations

import configparser
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import ssl
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
TOOLS = ROOT / ".tools"
STAMP = VENV / "hetsched.stamp"
REQUIREMENTS = ROOT / "requirements"
CONTROL_PLANE = ROOT / "tests" / "kube" / "control_plane.py"
BOOTSTRAP = REQUIREMENTS / "bootstrap.lock"
DEV_LOCK = REQUIREMENTS / "dev.lock"
LOCKS = ("bootstrap", "build", "runtime", "dev")  # dev is constrained by runtime, so it comes after it

# Tests that count words and modules, in seconds.
GUARDS = ("tests/unit/toolchain/test_language.py", "tests/unit/toolchain/test_structure.py")

# Each build of the documentation reads all pages, so that its warnings and its search index are complete.
SPHINX = ["-m", "sphinx", "-c", "docs", "--fresh-env", "--write-all", "--fail-on-warning", "--keep-going", "--quiet"]

OLDEST_PYTHON = (3, 11)
OLDEST_UV = (0, 8)
SYSTEM_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

# uv does not read pip's settings; these are passed to it under uv's names.
UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
# Users set these for other projects; here they select the wrong Python or reject the editable install.
UV_DROPPED = {"UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_REQUIRE_HASHES", "VIRTUAL_ENV"}


class SetupError(Exception):
    """Failure that the user can fix; the message says how."""


# --- output and subprocesses --------------------------------------------------------------------------------------


def say(text: str) -> None:
    print(f"dev.py: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(title: str):
    """Print the title of a step, and its duration if it took more than two seconds."""
    say(f"{title} …")
    start = time.monotonic()
    yield
    seconds = time.monotonic() - start
    if seconds > 2:
        say(f"  done in {seconds:.0f} s")


def run(*argv: str | Path, env: dict[str, str] | None = None, cwd: Path = ROOT, why: str = "") -> None:
    """Run a program. Raises SetupError if it fails."""
    code = subprocess.run([str(a) for a in argv], env=env, cwd=cwd, check=False).returncode
    if code:
        raise SetupError(f"{why or Path(argv[0]).name} failed (exit {code}); see its output above")


def become(*argv: str | Path) -> None:
    """Replace this process with the program, which then receives signals and sets the exit code."""
    os.chdir(ROOT)
    os.environ["PATH"] = os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)])
    os.execve(argv[0], [str(a) for a in argv], os.environ)


# --- the user's package index -------------------------------------------------------------------------------------


def pip_settings() -> dict[str, str]:
    """Return pip's settings from its configuration files, overridden by its environment variables."""
    home = Path(os.environ.get("HOME") or "/nonexistent")
    config_home = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), home / ".pip/pip.conf", config_home / "pip/pip.conf"]
    if chosen := os.environ.get("PIP_CONFIG_FILE"):
        files = [] if chosen == os.devnull else [*files, Path(chosen)]
    parser = configparser.RawConfigParser()
    try:
        parser.read(files)
    except (configparser.Error, UnicodeDecodeError) as error:
        raise SetupError(f"cannot read pip's settings: {error}") from error
    settings: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            settings.update(parser.items(section))
    for name, value in os.environ.items():
        if name.startswith("PIP_") and value:
            settings[name[4:].lower().replace("_", "-")] = value
    return settings


def uv_environment() -> dict[str, str]:
    """Return the user's environment plus pip's settings under uv's names, unless these are set."""
    env = {name: value for name, value in os.environ.items() if name not in UV_DROPPED}
    env["UV_PYTHON_DOWNLOADS"] = "never"
    if not env.get("HOME"):
        env.setdefault("UV_CACHE_DIR", str(TOOLS / "cache"))
    settings = pip_settings()
    if links := settings.pop("find-links", ""):  # pip warns about a missing folder, uv fails
        present = (link for link in links.split() if "://" in link or Path(link).is_dir())
        settings["find-links"] = ",".join(present)
    for name, value in settings.items():
        if value and name in UV_NAMES:
            env.setdefault(UV_NAMES[name], " ".join(value.split()))
    if not SYSTEM_CERTIFICATES.exists() and (TOOLS / "ca.pem").exists():
        env.setdefault("SSL_CERT_FILE", str(TOOLS / "ca.pem"))
    return env


# --- getting uv ---------------------------------------------------------------------------------------------------


def find_uv() -> Path:
    """Return the uv on PATH if it is recent enough, else the pinned version, downloaded once."""
    if on_path := shutil.which("uv"):
        printed = subprocess.run([on_path, "--version"], capture_output=True, text=True, check=False).stdout
        if (found := re.search(r"(\d+)\.(\d+)", printed)) and tuple(map(int, found.groups())) >= OLDEST_UV:
            return Path(on_path)
    version, hashes = pinned_uv()
    uv = TOOLS / f"uv-{version}"
    if not uv.exists():
        with step(f"Fetching uv {version}, the installer"):
            wheel = fetch_uv_wheel(version)
            if hashlib.sha256(wheel.read_bytes()).hexdigest() not in hashes:
                wheel.unlink()
                raise SetupError(f"{wheel.name} does not match the hash in {BOOTSTRAP.name}; it was deleted")
            unpack_uv(wheel, uv)
            for leftover in ("wheels", "apt"):
                shutil.rmtree(TOOLS / leftover, ignore_errors=True)
    return uv


def pinned_uv() -> tuple[str, set[str]]:
    text = BOOTSTRAP.read_text()
    return re.search(r"^uv==(\S+)", text, re.MULTILINE)[1], set(re.findall(r"sha256:([0-9a-f]{64})", text))


def unpack_uv(wheel: Path, uv: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        part = uv.with_suffix(".part")
        part.write_bytes(archive.read(member))
    part.chmod(0o755)
    part.replace(uv)


def fetch_uv_wheel(version: str) -> Path:
    """Download uv's wheel with the first available method; the caller checks its hash."""
    folder = TOOLS / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    if importlib.util.find_spec("pip"):
        pip_download(folder)
    elif wheel := bundled_pip():
        pip_download(folder, pip=wheel)
    elif index := pip_settings().get("index-url"):
        download_from(index, version, folder)
    elif wheel := debian_pip():
        pip_download(folder, pip=wheel)
    else:
        raise SetupError(
            "cannot download packages: this Python has neither pip nor ensurepip. Do one of these, then try again:\n"
            "  - install pip or uv with the package manager of this system\n"
            "  - set PIP_INDEX_URL to the package index to use"
        )
    return max(folder.glob(f"uv-{version}-*.whl"), key=lambda path: path.stat().st_mtime)


def bundled_pip() -> Path | None:
    """Return the pip wheel bundled with ensurepip, or None."""
    places = [Path("/usr/share/python-wheels")]
    if ensurepip := importlib.util.find_spec("ensurepip"):
        places.append(Path(ensurepip.origin).parent / "_bundled")
    return next((wheel for place in places for wheel in place.glob("pip-*.whl")), None)


def pip_download(folder: Path, *, pip: Path | None = None) -> None:
    """Download the pinned uv with the installed pip, or with the pip in the wheel `pip`."""
    env = dict(os.environ, PIP_REQUIRE_VIRTUALENV="0", PIP_DISABLE_PIP_VERSION_CHECK="1")
    if pip:
        env["PYTHONPATH"] = str(pip)
    if not SYSTEM_CERTIFICATES.exists() and (TOOLS / "ca.pem").exists():
        env.setdefault("PIP_CERT", str(TOOLS / "ca.pem"))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    run(*command, "--require-hashes", "-r", BOOTSTRAP, "-d", folder, env=env, why="pip download")


def download_from(index: str, version: str, folder: Path) -> None:
    """Download the wheel from the HTML page of a simple index, without pip."""
    page_url = index.rstrip("/") + "/uv/"
    try:
        trust = ssl.create_default_context(cafile=pip_settings().get("cert"))
        with urllib.request.urlopen(page_url, timeout=60, context=trust) as page:
            links = re.findall(r'href="([^"]+)"', page.read().decode())
        pattern = re.compile(rf"/uv-{re.escape(version)}-py3-none-manylinux[^/]*_{platform.machine()}\.[^/]*whl(#|$)")
        link = next((link for link in links if pattern.search(link)), None)
        if link is None:
            raise SetupError(f"the package index has no uv {version} for {platform.system()} on {platform.machine()}")
        url = urllib.parse.urldefrag(urllib.parse.urljoin(page_url, link)).url
        with urllib.request.urlopen(url, timeout=300, context=trust) as body:
            (folder / Path(urllib.parse.urlsplit(url).path).name).write_bytes(body.read())
    except (OSError, ValueError) as error:
        raise SetupError(f"cannot download uv from the package index of pip's settings: {error}") from error


def debian_pip() -> Path | None:
    """Unpack Debian's pip wheel and CA certificates under `.tools`, without root, and return the wheel."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    apt = TOOLS / "apt"
    for folder in ("lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    options = [f"Dir::State::lists={apt}/lists", f"Dir::Cache={apt}/cache", "APT::Sandbox::User=root"]
    apt_get = ["apt-get", "-qq", *(word for option in options for word in ("-o", option))]
    say("This Python has no pip: unpacking Debian's pip into .tools (apt-get download; nothing is installed)")
    run(*apt_get, "update", why="apt-get update")
    run(*apt_get, "download", "python3-pip-whl", "ca-certificates", cwd=apt, why="apt-get download")
    for package in apt.glob("*.deb"):
        run("dpkg-deb", "-x", package, apt / "unpacked")
    certificates = sorted((apt / "unpacked/usr/share/ca-certificates").rglob("*.crt"))
    (TOOLS / "ca.pem").write_text("\n".join(path.read_text() for path in certificates))
    return next((apt / "unpacked/usr/share/python-wheels").glob("pip-*.whl"), None)


# --- the environment ----------------------------------------------------------------------------------------------


def fingerprint() -> str:
    parts = [str(ROOT).encode(), *((REQUIREMENTS / f"{name}.lock").read_bytes() for name in LOCKS)]
    parts.append((ROOT / "pyproject.toml").read_bytes())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def is_current() -> bool:
    return (BIN / "python").exists() and STAMP.exists() and STAMP.read_text() == fingerprint()


def setup() -> None:
    """Create or update `.venv` from the locks; return at once if it is current."""
    if is_current():
        return
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_current():
            return
        uv, env = find_uv(), uv_environment()
        if not (BIN / "python").exists():
            interpreter = getattr(sys, "_base_executable", None) or sys.executable
            run(uv, "venv", "--quiet", "--clear", "--python", interpreter, VENV, env=env, why="making .venv")
        into = ["--python", BIN / "python"]
        with step("Installing the packages of requirements/dev.lock (over 200 MB the first time)"):
            run(uv, "pip", "sync", "--require-hashes", *into, DEV_LOCK, env=env, why="installing packages")
        command = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", *into, "-e", "."]
        run(uv, *command, env=env, why="installing hetsched")
        STAMP.write_text(fingerprint())
        say("Set-up is complete")


def relock(*args: str) -> None:
    """Resolve requirements/*.in; `--upgrade` updates every pin."""
    uv, env = find_uv(), uv_environment()
    flags = "--universal --generate-hashes --no-emit-index-url --no-emit-find-links --quiet --python-version 3.11"
    for name in LOCKS:
        with step(f"Locking requirements/{name}.in"):
            files = [f"requirements/{name}.in", "-o", f"requirements/{name}.lock"]
            note = ["--custom-compile-command", "python3 dev.py lock"]
            run(uv, "pip", "compile", *flags.split(), *note, *args, *files, env=env, why="resolving")


# --- targets ------------------------------------------------------------------------------------------------------


def start(*args: str) -> None:
    """Run all processes on this machine: web, workers, beat, message store, demo cluster"""
    setup()
    become(BIN / "hetsched", "standalone", *args)


def test(*args: str) -> None:
    """Run all tests that this machine supports; extra arguments go to pytest"""
    setup()
    if not args:
        build_kube()
        # Three workers on two cores, because many tests wait for other processes. The tests of a file share fixtures.
        args = ("--numprocesses", "3", "--dist", "loadfile", "--no-loadscope-reorder", "--durations", "40")
    become(BIN / "python", "-m", "pytest", *args)


def chaos(*args: str) -> None:
    """Run the chaos tests at full size (hours); end with a table of faults, and exit with 1 if there is one"""
    setup()
    build_kube()
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
