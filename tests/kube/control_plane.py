"""A real Kubernetes control plane on loopback: etcd and kube-apiserver, and kube-scheduler if a test needs it.

The tests use a real API server, because a fake may behave differently. Programs are looked up in KUBEBUILDER_ASSETS,
then in PATH; otherwise they are built from the released modules that `go.mod` in this folder pins, and kept in the
user's cache folder. Every control plane has its own folder, free ports and new certificates, and stops all processes
that it started.
As a command: `build` builds missing programs, `up` runs a control plane until Ctrl-C and prints the path of its
kubeconfig.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).resolve().parent
VERSION = "1.37.2"
# Other versions of the API server, and the folders of the modules that pin them. `matrix.py` runs tests on all of them.
OTHERS = {version: HERE / "versions" / version.rpartition(".")[0] for version in ("1.34.4", "1.35.4", "1.36.3")}
API_SERVER = os.environ.get("HETSCHED_TEST_KUBERNETES") or VERSION
HELM_VERSION = "3.21.4"
KUBERNETES = ("kube-apiserver", "kube-scheduler", "kubectl", "kubelet")
# Programs of the tests with kube-scheduler's and the kubelet's own code; their sources are in folders of these names.
VERDICTS = ("scheduler_verdicts", "kubelet_verdicts")
SCHEDULER_VERDICTS, KUBELET_VERDICTS = VERDICTS
PROGRAMS = (*KUBERNETES, *VERDICTS, "helm")
# No controller creates service accounts or removes the taints of new nodes.
DISABLED_PLUGINS = ("ServiceAccount", "TaintNodesByCondition")
_READY_SECONDS = 180
# Only calls of service accounts in the namespace hetsched are audited; a watch is recorded when it begins.
_AUDITED = "system:serviceaccounts:hetsched"


class Unavailable(Exception):
    """Raised if a program of the control plane can neither be found nor built; the text contains the reason."""


def cache(program: str = "kube-apiserver") -> Path:
    """Return the cache folder of a built program."""
    tests = os.environ.get("HETSCHED_TEST_PROGRAMS")  # tests have their own home folder (tests/isolation.py)
    home = Path(tests or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if program in VERDICTS:  # built again if its source changes
        sources = b"".join(path.read_bytes() for path in sorted((HERE / program).glob("*.go")))
        folder = f"{program}-{VERSION}-{hashlib.sha256(sources).hexdigest()[:12]}"
    elif program in KUBERNETES:
        folder = API_SERVER if program == "kube-apiserver" else VERSION
    else:
        folder = f"{program}-{HELM_VERSION}"
    return home / "hetsched-kube" / folder


def find(program: str) -> Path | None:
    """Return an existing program, None if it has to be built."""
    # A stated version of the API server is used from the cache only; another program may have any version.
    is_stated = program == "kube-apiserver" and "HETSCHED_TEST_KUBERNETES" in os.environ
    places = [os.environ.get("KUBEBUILDER_ASSETS"), str(cache(program)), os.environ.get("PATH")]
    for place in places[1:2] if is_stated else places:
        if place and (found := shutil.which(program, path=place)):
            return Path(found)
    return None


def built(program: str) -> Path:
    """Return a program, which is built if it is missing. Raises: Unavailable."""
    if find(program) is None:
        print(f"Building {program} (some minutes, once)", file=sys.stderr)
        build([program])
    found = find(program)
    if found is None:
        raise Unavailable(f"{program} is missing after its build")
    return found


def build(programs: Sequence[str] = PROGRAMS) -> None:
    """Build missing programs from released modules into the cache.

    Raises: Unavailable, without Go or if the build fails.
    """
    missing = [program for program in programs if find(program) is None]
    if not missing:
        return
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise Unavailable(f"{', '.join(missing)}: not found, and there is no Go to build them with")
    if "kube-apiserver" in missing:
        module = {VERSION: HERE, **OTHERS}.get(API_SERVER)
        if module is None:
            raise Unavailable(f"HETSCHED_TEST_KUBERNETES={API_SERVER}: known are {VERSION}, {', '.join(OTHERS)}")
        _go_build(go, module, cache(), version_flags(API_SERVER), ["k8s.io/kubernetes/cmd/kube-apiserver"])
    others = [program for program in missing if program in KUBERNETES and program != "kube-apiserver"]
    if others:
        commands = [f"k8s.io/kubernetes/cmd/{program}" for program in others]
        _go_build(go, HERE, cache(others[0]), version_flags(VERSION), commands)
    for program in set(VERDICTS) & set(missing):
        _go_build(go, HERE, cache(program), version_flags(VERSION), [f"./{program}"])
    if "helm" in missing:
        stamp = "-X helm.sh/helm/v3/"
        minor = f"{stamp}pkg/chartutil.k8sVersionMajor=1 {stamp}pkg/chartutil.k8sVersionMinor={VERSION.split('.')[1]}"
        version = f"{stamp}internal/version.version=v{HELM_VERSION} {minor}"
        _go_build(go, HERE.parent / "helm", cache("helm"), version, ["helm.sh/helm/v3/cmd/helm"])


def version_flags(version: str) -> str:
    """Return the linker flags that set the version of Kubernetes' programs."""
    stamp = "-X k8s.io/component-base/version."
    return f"{stamp}gitVersion=v{version} {stamp}gitMajor=1 {stamp}gitMinor={version.split('.')[1]}"


def _go_build(go: str, module: Path, into: Path, stamps: str, commands: Sequence[str]) -> None:
    """Build commands of the modules that a folder's `go.mod` pins, at low CPU priority."""
    part = into.parent / f"{into.name}.part{os.getpid()}"
    part.mkdir(parents=True, exist_ok=True)
    nice = ["nice", "-n", "10"] if shutil.which("nice") else []
    command = [*nice, go, "build", "-p", "2", "-trimpath", "-ldflags", f"-s -w {stamps}", "-o", f"{part}/", *commands]
    done = subprocess.run(
        command, cwd=module, env={**os.environ, "CGO_ENABLED": "0"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        shutil.rmtree(part, ignore_errors=True)
        raise Unavailable(f"go build failed: {done.stderr.strip()[-500:]}")
    into.mkdir(parents=True, exist_ok=True)
    for program in part.iterdir():
        program.replace(into / program.name)
    part.rmdir()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ControlPlane:
    """One control plane, used in a `with` statement. `token` belongs to an administrator; `arguments` are added to
    those of the API server, which runs without the admission plugins `disabled`.
    """

    def __init__(self, *arguments: str, disabled: Sequence[str] = DISABLED_PLUGINS) -> None:
        self.arguments = arguments
        self.disabled = disabled
        self.folder = Path(tempfile.mkdtemp(prefix="hetsched-kube-"))
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.token = secrets.token_hex(16)
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- starting and stopping ---------------------------------------------------------------------------------------

    def _start(self) -> None:
        folder = self.folder
        tokens = folder / "tokens.csv"
        tokens.touch(0o600)
        tokens.write_text(f'{self.token},admin,admin,"system:masters"\n')
        key = folder / "service-account.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        rules = [{"level": "Metadata", "userGroups": [_AUDITED], "omitStages": ["RequestReceived"]}, {"level": "None"}]
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}
        (folder / "audit-policy.json").write_text(json.dumps(policy))
        client, peer = free_port(), free_port()
        etcd = f"http://127.0.0.1:{client}"
        self._run(
            "etcd", f"--data-dir={folder}/etcd", f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}", f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}", "--unsafe-no-fsync", "--log-level=error",
        )  # fmt: skip
        self._run(
            "kube-apiserver", f"--etcd-servers={etcd}", f"--secure-port={self.port}", "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1", f"--cert-dir={folder}/certificates",
            f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC", "--endpoint-reconciler-type=none",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/24",
            f"--disable-admission-plugins={','.join(self.disabled)}",
            f"--audit-policy-file={folder}/audit-policy.json", f"--audit-log-path={folder}/audit.log",
            *self.arguments,
        )  # fmt: skip
        self.wait_until_ready()

    def _run(self, program: str, *arguments: str) -> None:
        found = find(program)
        if found is None:
            raise Unavailable(f"{program} is not there")
        command = [str(found), *arguments]
        with (self.folder / f"{program}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        self._processes.append(process)

    def wait_until_ready(self) -> None:
        """Wait until the API server is ready; fail with its log after the timeout."""
        until = time.monotonic() + _READY_SECONDS
        while time.monotonic() < until:
            if any(process.poll() is not None for process in self._processes):
                break
            try:
                if self.call("GET", "/readyz", raw=True) == b"ok" and self._has_default_namespace():
                    return
            except (OSError, urllib.error.HTTPError):
                pass
            time.sleep(0.2)
        logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log")))
        raise RuntimeError(f"the control plane did not become ready:\n{logs}")

    def _has_default_namespace(self) -> bool:
        try:
            self.call("GET", "/api/v1/namespaces/default")
        except urllib.error.HTTPError:
            return False
        return True

    def stop(self) -> None:
        """Kill the started processes and remove the folder, which contains all their files.

        They are killed because on SIGTERM the API server waits longer for its open watches than most tests take.
        """
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- requests ----------------------------------------------------------------------------------------------------

    @property
    def authority(self) -> bytes:
        """Return the self-signed certificate of the API server, PEM."""
        return (self.folder / "certificates" / "apiserver.crt").read_bytes()

    def call(self, method: str, path: str, body: Any = None, *, raw: bool = False, content: str = "") -> Any:
        """Call the API server as the administrator and return the JSON document, or the bytes."""
        context = ssl.create_default_context(cadata=self.authority.decode())
        context.check_hostname = False
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/json"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = content or "application/json"
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            text = answer.read()
        return text if raw else json.loads(text)

    def audited(self) -> list[dict[str, Any]]:
        """Return the audited calls of service accounts of the namespace hetsched, the oldest first.

        The server writes an audit event after its response, so this waits until the log stops growing.
        """
        log = self.folder / "audit.log"
        sizes = [-1]
        while len(sizes) < 20 and (now := log.stat().st_size if log.exists() else 0) != sizes[-1]:
            sizes.append(now)
            time.sleep(0.25)
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def kubeconfig(self) -> dict[str, Any]:
        """Return the administrator's kubeconfig with inline credentials."""
        authority = b64encode(self.authority).decode()
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "test", "cluster": {"server": self.url, "certificate-authority-data": authority}},
            ],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "current-context": "test",
        }


def main(command: str) -> int:
    if command == "build":
        build()
        return 0
    if command != "up":
        print(f"usage: python3 {Path(__file__).name} build|up", file=sys.stderr)
        return 2
    build()
    # Both signals leave the `with` block, which stops the started processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(KeyboardInterrupt), ControlPlane() as plane:
        path = plane.folder / "kubeconfig.json"
        path.touch(0o600)
        path.write_text(json.dumps(plane.kubeconfig(), indent=2))
        print(
            f"{plane.url} is up; Ctrl-C ends it\n  export KUBECONFIG={path}\n  {find('kubectl')} get nodes", flush=True
        )
        while True:
            signal.pause()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
    except Unavailable as error:
        print(f"KUBE TESTS NOT RUN: {error}", file=sys.stderr)
        sys.exit(1)
