"""Build Kubernetes' own tests of scheduling from the released modules that `go.mod` in this folder pins.

The e2e tests, kube-scheduler and kube-controller-manager are built unchanged. Integration tests start an API server in
their process; their copy calls an API server of this suite instead: `integration/api_server.go.txt` replaces one
function of `test/integration/util`, and the import path of that package is changed. No test is edited.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.kube import control_plane
from tests.kube.control_plane import API_SERVER, Unavailable

HERE = Path(__file__).resolve().parent
MODULE = "hetsched.example/tests/upstream"
COMMANDS = SCHEDULER, CONTROLLER_MANAGER = "kube-scheduler", "kube-controller-manager"
E2E = "e2e.test"
_FUNCTION = HERE / "integration" / "api_server.go.txt"
_UTIL = "k8s.io/kubernetes/test/integration/util"
_IMPORT = re.compile(r'\t(?:(\w+) )?"([^"]+)"')
_ADDED = ("os", "strings", "k8s.io/client-go/tools/clientcmd")


def path_of(program: str) -> Path:
    """Return the path of a program in the cache; an integration test is the name of its package."""
    if program in (*COMMANDS, E2E):
        return control_plane.cache() / program
    sources = b"".join(path.read_bytes() for path in (_FUNCTION, HERE / "go.mod", Path(__file__)))
    folder = f"upstream-{API_SERVER}-{hashlib.sha256(sources).hexdigest()[:12]}"
    return control_plane.cache().parent / folder / f"{program.replace('/', '_')}.test"


def build(programs: Iterable[str]) -> None:
    """Build missing programs, at low CPU priority.

    Raises: Unavailable, without Go or if a build fails.
    """
    missing = [program for program in programs if not path_of(program).exists()]
    if not missing:
        return
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise Unavailable(f"{', '.join(missing)}: not found, and there is no Go to build them with")
    with tempfile.TemporaryDirectory(prefix="hetsched-upstream-") as name:
        module = Path(name)
        for file in ("go.mod", "go.sum"):
            shutil.copyfile(HERE / file, module / file)
        kubernetes = Path(_run(go, module, "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").strip())
        for program in missing:
            print(f"Building {program} (Kubernetes {API_SERVER}) …", flush=True)
            _build(go, module, kubernetes, program)


def _build(go: str, module: Path, kubernetes: Path, program: str) -> None:
    path = path_of(program)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    flags = ["-p", "2", "-trimpath", "-ldflags", f"-s -w {control_plane.version_flags(API_SERVER)}", "-o", str(part)]
    if program in COMMANDS:
        _run(go, module, "build", *flags, f"k8s.io/kubernetes/cmd/{program}")
    elif program == E2E:
        _run(go, module, "test", "-c", "-vet=off", *flags, "k8s.io/kubernetes/test/e2e")
    else:
        _copy_integration_tests(kubernetes, module, program)
        _run(go, module, "test", "-c", "-vet=off", *flags, f"./scheduler/{program}")
    part.replace(path)


def _run(go: str, module: Path, *words: str) -> str:
    nice = ["nice", "-n", "10"] if shutil.which("nice") else []
    done = subprocess.run(
        [*nice, go, *words], cwd=module, env={**os.environ, "CGO_ENABLED": "0"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise Unavailable(f"go {words[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def _copy_integration_tests(kubernetes: Path, module: Path, package: str) -> None:
    """Copy a package of integration tests and the replaced `util` package to the module."""
    util = module / "util"
    util.mkdir(exist_ok=True)
    text = (kubernetes / "test/integration/util/util.go").read_text()
    (util / "util.go").write_text(with_external_server(text, _FUNCTION.read_text()))
    into = module / "scheduler" / package
    into.mkdir(parents=True, exist_ok=True)
    for file in (kubernetes / "test/integration/scheduler" / package).glob("*.go"):
        (into / file.name).write_text(file.read_text().replace(f'"{_UTIL}"', f'"{MODULE}/util"'))


def with_external_server(text: str, function: str) -> str:
    """Replace InitTestAPIServer in the source of `util`, and remove the imports that only it used.

    Raises: Unavailable if the source has no such function.
    """
    text, count = re.subn(
        r"\n// InitTestAPIServer .*?\n}\n", lambda _: function, text, count=1, flags=re.DOTALL
    )  # fmt: skip
    if count != 1:
        raise Unavailable(f"InitTestAPIServer was not found in {_UTIL}")
    head, _, body = text.partition("\n)\n")
    first, *imports = head.split("import (\n")
    lines = [line for line in imports[0].splitlines() if not line or _is_used(line, body)]
    added = [f'\t"{path}"' for path in _ADDED]
    return "\n".join([f"{first}import (", *added, *lines, ")", body])


def _is_used(line: str, body: str) -> bool:
    """Return whether an import is used; unusual package names are assumed to be."""
    found = _IMPORT.fullmatch(line)
    if found is None:
        return True
    name = found[1] or found[2].rpartition("/")[2]
    return re.fullmatch(r"\w+", name) is None or name == "v2" or re.search(rf"\b{name}\.\w", _without(body)) is not None


def _without(body: str) -> str:
    """Return the source without comments."""
    return re.sub(r"//[^\n]*", "", body)
