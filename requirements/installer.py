"""Install the packages of the lock files into `.venv` with uv.

A minimal Debian 12 has Python 3.11 without pip, venv and make, and PEP 668 forbids pip in the system's site-packages.
Therefore uv installs everything into `.venv`. The installer uses the uv on PATH, or else downloads the version pinned
in bootstrap.lock with pip: that of Python, the wheel bundled with ensurepip, or Debian's wheel unpacked into `.tools`.
It skips the set-up while the stamp in `.venv`, a hash of the locks and pyproject.toml, matches.

Only the standard library is used, because nothing is installed yet. Every Python package is checked against a hash. The
package index is the one that the user configured for pip or uv.
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

REQUIREMENTS = Path(__file__).resolve().parent
ROOT = REQUIREMENTS.parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
TOOLS = ROOT / ".tools"
STAMP = VENV / "hetsched.stamp"
BOOTSTRAP = REQUIREMENTS / "bootstrap.lock"
DEV_LOCK = REQUIREMENTS / "dev.lock"
LOCKS = ("bootstrap", "build", "runtime", "dev")  # dev is constrained by runtime, so it comes after it

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
