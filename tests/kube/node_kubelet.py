"""A real kubelet with containerd on this machine, as the node of a test control plane.

The kubelet runs in a mount namespace of its own: `/var/lib` and `/var/log` are folders of the test, and the kernel
settings that a kubelet changes are files of the test. Its pods are in cgroups below one parent, which is removed with
all their processes. `enter` runs another program of the node, such as the agent, in the same namespace.
`missing_requirement` names the first property of this machine that forbids all this.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hetsched.agent.cri import Runtime
from hetsched.contracts.cpuset import parse_cpuset
from tests import parts
from tests.agent.containerd import IMAGE, Containerd, running
from tests.kube.control_plane import ControlPlane
from tests.system.processes import Process, wait_until

CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
ONLINE = parse_cpuset(Path("/sys/devices/system/cpu/online").read_text())
# Settings that a kubelet writes at start: pkg/kubelet/cm/container_manager_linux.go, setupKernelTunables.
_SETTINGS = (
    "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)  # fmt: skip
_NETWORK = {"cniVersion": "0.4.0", "name": "host", "plugins": [{"type": "loopback"}]}
_READY_SECONDS = 120
Json = dict[str, Any]


def missing_requirement() -> str:
    """Return the first check that this machine fails, empty if a kubelet can run here."""
    if os.geteuid() != 0:
        return f"the kubelet needs root (effective user {os.geteuid()}): run the test as root"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        return "mount namespaces are not permitted (unshare --mount): run the test with CAP_SYS_ADMIN"
    if len(ONLINE) < 2:
        return "one CPU is online (/sys/devices/system/cpu/online): use a machine with two CPUs or more"
    return missing_controller(CGROUPS)


def missing_controller(cgroups: Path) -> str:
    """Return the first cgroup controller below a folder that a kubelet cannot use, with the reason, empty if none."""
    listed = cgroups / "cgroup.controllers"
    if listed.exists():
        delegated = listed.read_text().split()
        for name in CONTROLLERS:
            if name not in delegated:
                return f"cgroup v2 controller {name} is not delegated ({listed}): enable it in the parent cgroup"
        try:
            (cgroups / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS))
        except OSError as error:
            where = f"{cgroups}/cgroup.subtree_control: {error.strerror}"
            return f"cgroup v2 controllers cannot be enabled ({where}): use a cgroup without processes of its own"
        return ""
    for name in (*CONTROLLERS, "cpuacct"):
        if not (cgroups / name / "cgroup.procs").exists():
            return f"cgroup v1 controller {name} is not mounted ({cgroups / name}): mount it"
        if not os.access(cgroups / name, os.W_OK):
            return f"cgroup v1 controller {name} is read-only ({cgroups / name}): mount it writable"
    return ""


class NodeKubelet:
    """One kubelet, whose Node object has the name `node`; its configuration is that of a test, over safe defaults."""

    def __init__(self, plane: ControlPlane, runtime: Containerd, node: str, configuration: Json) -> None:
        self.node = node
        self.runtime = runtime
        self.folder = runtime.folder / "node"
        self.root = self.folder / "lib" / "kubelet"  # /var/lib/kubelet in the namespace
        for name in ("lib/kubelet", "log/pods", "settings", "plugins"):
            (self.folder / name).mkdir(parents=True)
        (runtime.folder / "cni" / "10-host.conflist").write_text(json.dumps(_NETWORK))
        (self.root / "kubeconfig").write_text(json.dumps(plane.kubeconfig()))
        # The agent reads YAML in block style.
        (self.root / "config.yaml").write_text(_block_style(self._configuration() | configuration))
        self._process: Process | None = None

    def _configuration(self) -> Json:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "enableServer": False, "healthzPort": 0,
            "containerRuntimeEndpoint": f"unix://{self.runtime.socket}",
            "cgroupDriver": "cgroupfs", "cgroupRoot": self.runtime.parent, "failCgroupV1": False,
            "failSwapOn": False, "makeIPTablesUtilChains": False, "localStorageCapacityIsolation": False,
            "podLogsDir": str(self.folder / "log" / "pods"), "volumePluginDir": str(self.folder / "plugins"),
            "nodeStatusUpdateFrequency": "1s", "syncFrequency": "1s", "cpuManagerReconcilePeriod": "1s",
            "imageGCHighThresholdPercent": 100, "evictionHard": {"memory.available": "100Mi"},
        }  # fmt: skip

    def start(self, shown: Mapping[str, str]) -> None:
        """Start the kubelet; `shown` maps absolute paths to the text that the node's programs read there."""
        self._make_cgroups()
        mounts = {"/var/lib": self.folder / "lib", "/var/log": self.folder / "log"}
        kernel = [path for name in _SETTINGS if (path := Path("/proc/sys", name)).exists()]
        settings = {str(path): path.read_text() for path in kernel}
        for number, (path, text) in enumerate({**settings, **shown}.items()):
            mounts[path] = self.folder / "settings" / str(number)
            mounts[path].write_text(text)
        steps = [f"mount --bind {shlex.quote(str(source))} {shlex.quote(path)}" for path, source in mounts.items()]
        words = [
            str(parts.require("kubelet")), f"--config={self.root}/config.yaml", f"--kubeconfig={self.root}/kubeconfig",
            f"--root-dir={self.root}", f"--hostname-override={self.node}", "--oom-score-adj=0", "--v=2",
        ]  # fmt: skip
        script = " && ".join([*steps, f"exec {shlex.join(words)}"])
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        self._process = Process(command, env=os.environ, log=self.folder / "kubelet.log")
        wait_until((self.root / "pod-resources" / "kubelet.sock").exists, what=self.log_tail, seconds=_READY_SECONDS)

    def enter(self, *words: str) -> list[str]:
        """Return the command that runs a program in the mount namespace of the kubelet."""
        assert self._process is not None
        return ["nsenter", f"--mount=/proc/{self._process.popen.pid}/ns/mnt", f"--wd={self.folder}", "--", *words]

    def log_tail(self) -> str:
        return (self.folder / "kubelet.log").read_text(errors="replace")[-6000:]

    def assigned(self) -> dict[str, dict[str, str]]:
        """Return the exclusive CPUs in the checkpoint of the CPU manager, by uid and container."""
        state = json.loads((self.root / "cpu_manager_state").read_text())
        entries: dict[str, dict[str, str]] = state.get("entries", {})
        return entries

    def stop(self) -> None:
        """End the kubelet, then its pods."""
        if self._process is not None:
            self._process.stop()
        runtime = Runtime(self.runtime.socket, timeout_seconds=30)
        for sandbox in runtime.sandboxes():
            self.runtime.adopt(sandbox.id)
        runtime.close()
        self.runtime.end_pods()

    def _make_cgroups(self) -> None:
        """Create the parent of the pods' cgroups; in cgroup v1, a new cpuset has no CPUs and no memory."""
        name = self.runtime.parent.lstrip("/")
        if (CGROUPS / "cgroup.controllers").exists():
            (CGROUPS / name).mkdir()
            return
        for base in CGROUPS.iterdir():
            if (base / "cgroup.procs").exists() and base.name != "unified":
                (base / name).mkdir()
        for file in ("cpuset.cpus", "cpuset.mems"):
            (CGROUPS / "cpuset" / name / file).write_text((CGROUPS / "cpuset" / file).read_text())


def _block_style(values: Json, indent: str = "") -> str:
    lines = []
    for key, value in values.items():
        if isinstance(value, dict):
            lines.append(f"{indent}{key}:\n{_block_style(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}\n")
    return "".join(lines)


@contextmanager
def node_kubelet(
    plane: ControlPlane, node: str, configuration: Json, shown: Mapping[str, str] | None = None
) -> Iterator[NodeKubelet]:
    """Run a kubelet and its containerd; end both with all their pods, also after a failure."""
    with running() as runtime:
        kubelet = NodeKubelet(plane, runtime, node, configuration)
        try:
            kubelet.start(shown or {})
            yield kubelet
        finally:
            kubelet.stop()


def pod(name: str, cpus: int, **spec: Any) -> Json:
    """Return a Guaranteed pod with exclusive CPUs and the network of the node, which needs no network plugin."""
    amounts = {"cpu": str(cpus), "memory": "32Mi"}
    container = {
        "name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["/bin/busybox", "sleep", "100000"],
        "resources": {"requests": amounts, "limits": amounts},
    }  # fmt: skip
    wanted = {
        "containers": [container], "hostNetwork": True, "automountServiceAccountToken": False,
        "enableServiceLinks": False, "terminationGracePeriodSeconds": 0, **spec,
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": wanted}
