"""The commands of the cluster tutorial, run verbatim: from the artefacts of a release to a bound pod.

Real here: the artefacts, pip, helm, kubectl, API server and kube-scheduler. This machine has no kubelet and no
controllers, so the rendered command of the release's pod runs as a local process, its test pod too, and `kubectl exec`
runs its command in the environment of that process. The dependencies of the wheel are those of the test environment.
"""

from __future__ import annotations

import contextlib
import doctest
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError

import pytest

from hetsched.adapters.kubernetes.resources import NODES, PODS
from tests.kube import access, kinds
from tests.kube.control_plane import ControlPlane, find
from tests.kube.foreign_scheduler import kube_scheduler
from tests.kube.kubelet import RUNS, BoundPod, Kubelet, PodOutcome, ends
from tests.kube.local_release import LocalRelease, delete_claim
from tests.kube.seeded_objects import replace
from tests.kube.stateful_set import StatefulSetController
from tests.seeded_clusters import KINDS, SeededCluster, seeded_cluster
from tests.system.processes import ROOT, plain_environment

pytestmark = [
    pytest.mark.needs("helm", "etcd", "kube-apiserver", "kube-scheduler", "unshare"),
    pytest.mark.timeout(900),
]
PAGE = ROOT / "docs" / "tutorial" / "cluster.md"
MOST_COMMANDS, MOST_SECONDS, REPEATS = 8, 600, 20
SHOWN = "instruction_sets"  # the kind of cluster whose report is on the page
KUBECTL = """#!{python}
# kubectl reaches a container through its kubelet. Without kubelets, the command runs on the machine of the process.
import json, os, sys
words = sys.argv[1:]
if "exec" not in words:
    os.execv({kubectl!r}, [{kubectl!r}, *words])
place = words.index("--")
assert words[:place] == ["-n", "hetsched", "exec", "statefulset/hetsched"], words
with open({environment!r}) as file:
    os.execvpe(words[place + 1], words[place + 1 :], json.load(file) | {{"HETSCHED_SERVER": {server!r}}})
"""


class Step(NamedTuple):
    """A command of the page, and the output that the page shows; `…` is any text."""

    command: str
    output: str
    repeated: bool


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def steps() -> list[Step]:
    found = re.findall(
        r"^```sh\n(.*?)^```\n\n.*?^```text\n(.*?)^```$(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    return [
        Step(command.replace("\\\n", ""), output, "run the command again" in after) for command, output, after in found
    ]


def test_page_has_at_most_eight_single_commands() -> None:
    commands = [step.command for step in steps()]
    assert len(blocks("sh")) == len(commands)
    assert 0 < len(commands) <= MOST_COMMANDS
    assert not re.search(r"^(    |\t)", re.sub(r"^```.*?^```$", "", PAGE.read_text(), flags=re.M | re.S), re.M)
    for command in commands:
        assert command.count("\n") == 1, command
        words = list(shlex.shlex(command, posix=True, punctuation_chars=True))
        assert not {word for word in words if set(word) <= set("();<>|&")}, command


class Reader:
    """A person with an empty home folder, a kubeconfig, and a folder with the artefacts of a release."""

    def __init__(self, folder: Path, artefacts: Path) -> None:
        self.downloads, self.programs = folder / "downloads", folder / "venv" / "bin"
        home, tools = folder / "home", folder / "tools"
        for made in (self.downloads, home, tools):
            made.mkdir()
        self.tools = tools
        for file in artefacts.iterdir():
            shutil.copy(file, self.downloads)
        (self.downloads / "pods.yaml").write_text(blocks("yaml")[0])
        venv.create(folder / "venv", with_pip=True)
        libraries = folder / f"venv/lib/python{sysconfig.get_python_version()}/site-packages"
        (libraries / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        path = os.pathsep.join(map(str, (self.programs, tools, *os.defpath.split(os.pathsep))))
        kept = {name: value for name, value in plain_environment().items() if not name.startswith("PIP_")}
        self.environment = kept | {
            "HOME": str(home), "PATH": path, "KUBECONFIG": str(folder / "kubeconfig"), "PIP_NO_INDEX": "1"
        }  # fmt: skip
        assert list(home.iterdir()) == []

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        shell = ["bash", "-c", command]
        options = {"cwd": self.downloads, "env": self.environment, "capture_output": True, "text": True}
        return subprocess.run(shell, check=False, **options)

    def follow(self, step: Step, code: int = 0) -> None:
        """Run the command of a step, and compare its output with the page; repeat it if the page says so."""
        start = time.monotonic()
        for _ in range(REPEATS if step.repeated else 1):
            done = self.run(step.command)
            print(f"$ {step.command}{done.stdout}{done.stderr}# {time.monotonic() - start:.1f} s")
            assert done.returncode == code, done.stdout + done.stderr
            if is_shown(step.output, done.stdout):
                return
        pytest.fail(f"{step.command} printed another output than the page:\n{done.stdout}")


def is_shown(page: str, output: str) -> bool:
    """Return whether an output is that of the page, up to `…` and white space."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(page.replace("…", "..."), output, flags)


def test_output_comparison_detects_differences() -> None:
    assert is_shown("…\npod/second …\n", "pod/first created\npod/second  created\n")
    assert not is_shown("…\npod/second created\n", "pod/first created\n")


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("release") / "dist"
    command = [sys.executable, "-m", "deploy.release", "--no-platforms", "--out", out]
    done = subprocess.run(command, cwd=ROOT, env=plain_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def reader(tmp_path: Path, artefacts: Path) -> Reader:
    return Reader(tmp_path, artefacts)


@pytest.fixture
def release(plane: ControlPlane, tmp_path: Path, reader: Reader) -> Iterator[LocalRelease]:
    """The release of the reader, which is uninstalled at the end, and the programs `helm` and `kubectl`."""
    made = LocalRelease(plane, tmp_path, "hetsched", reader.programs)
    helm, kubectl = find("helm"), find("kubectl")
    assert helm
    assert kubectl
    (reader.tools / "helm").symlink_to(helm)
    environment = str(tmp_path / "environment.json")
    program = reader.tools / "kubectl"
    program.write_text(
        KUBECTL.format(python=sys.executable, kubectl=str(kubectl), environment=environment, server=made.url)
    )
    program.chmod(0o755)
    with kinds.installed(plane, [*kinds.ours(), *kinds.theirs()]):
        try:
            yield made
        finally:
            made.helm("uninstall", "hetsched", "--ignore-not-found")
            with contextlib.suppress(HTTPError):  # not created if an earlier step failed
                delete_claim(plane, "hetsched")
                plane.call("DELETE", "/api/v1/namespaces/hetsched/pods/hetsched-test?gracePeriodSeconds=0")
            access.wait_until_guarded(plane, guarded=False)


def test_reader_gets_from_the_wheel_to_a_bound_pod(plane: ControlPlane, reader: Reader, release: LocalRelease) -> None:
    install, look, helm_install, helm_test, *others, wait_for_node = steps()
    start = time.monotonic()
    reader.follow(install)
    for kind in sorted(KINDS, key=lambda kind: kind == SHOWN):
        cluster = seeded_cluster(kind, 0, faults=True)
        api = replace(plane, cluster.objects)
        if kind != SHOWN:
            check_report(reader, look, cluster)
    reader.follow(look, code=1)

    def rule(pod: BoundPod) -> PodOutcome:
        return ends(run_test_pod(plane, release)) if pod.name == "hetsched-test" else RUNS

    with kube_scheduler(plane), Kubelet(api, rule), StatefulSetController(release):
        for step in (helm_install, helm_test, *others):
            reader.follow(step)
        # Which of the free nodes is chosen depends on the pods that kube-scheduler has placed by then.
        nodes = {json.loads(item)["metadata"]["name"] for page, _ in api.list_pages(NODES) for item in page}
        assert wait_for_node.output.strip() in nodes
        reader.follow(wait_for_node._replace(output="…\n"))
        second = json.loads(api.get(PODS.path(namespace="default", name="second")))
        assert second["spec"]["nodeName"] in nodes
    seconds = time.monotonic() - start
    print(f"{len(steps())} commands, {seconds:.0f} s")
    assert seconds < MOST_SECONDS


def check_report(reader: Reader, look: Step, cluster: SeededCluster) -> None:
    """Check that the command of the page reports the seeded faults, and no others."""
    done = reader.run(look.command)
    found = re.findall(r"^(?:error|warning|note) \[(\w+)\] (\w+) ?([\w./-]*)(?: \(\d+\))?:", done.stdout, re.MULTILINE)
    assert set(found) == cluster.expected, done.stdout + done.stderr
    is_error = re.search(r"^error ", done.stdout, re.MULTILINE) is not None
    assert done.returncode == int(is_error)


def run_test_pod(plane: ControlPlane, release: LocalRelease) -> int:
    """Run the command of the pod of `helm test`, with the address of the local process in place of the Service."""
    path = "/api/v1/namespaces/hetsched/pods/hetsched-test"
    (container,) = plane.call("GET", path)["spec"]["containers"]
    words = [f"--server={release.url}" if word.startswith("--server") else word for word in container["command"]]
    return subprocess.run(words, env=release.environment(), check=False).returncode
