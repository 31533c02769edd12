"""A private containerd with runc; a test creates its sandboxes and containers as a kubelet would.

Socket, root and state belong to the test; containers get cgroups below a separate parent. Every started process is
ended by its ID. `restrict_oom_score_adj` and the `native` snapshotter avoid privileges that a test machine may lack.
Pods use the host's network, so no CNI is needed.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

IMAGE = "hetsched.test/busybox:1"
_SERVICE = "/runtime.v1.RuntimeService/"
_HOST = 2  # NamespaceMode NODE
PR_SET_CHILD_SUBREAPER = 36
CONFIG = """version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs"]
[grpc]
  address = "{folder}/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true
  disable_tcp_service = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{folder}/cni"
    conf_dir = "{folder}/cni"
"""


def messages(folder: Path) -> Any:
    """Return the messages of `cri_full.proto` by name."""
    source, made = Path(__file__).with_name("cri_full.proto"), folder / "cri_full.bin"
    assert protoc.main(["protoc", f"-I{source.parent}", f"--descriptor_set_out={made}", source.name]) == 0
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file
    for file in files:
        pool.Add(file)

    def message(of: str, /, **given: Any) -> Any:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"hetsched.tests.cri.{of}"))(**given)

    return message


class Containerd:
    """One containerd; `start` and `stop` may be called repeatedly while its containers keep running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "c.sock"
        self.parent = f"/hetsched-test-{uuid.uuid4().hex[:12]}"
        self._message = messages(folder)
        _adopt(True)
        self._process: subprocess.Popen[bytes] | None = None
        self._configs: dict[str, Any] = {}
        (folder / "cni").mkdir()
        (folder / "config.toml").write_text(CONFIG.format(folder=folder, image=IMAGE))

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            command = ["containerd", "--config", str(self.folder / "config.toml")]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        until = time.monotonic() + 30
        while not self._answers():
            assert time.monotonic() < until, (self.folder / "log").read_text()[-4000:]
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            self._call("Version", self._message("Empty"), "Empty")
        except grpc.RpcError:
            return False
        return True

    def add_image(self) -> None:
        """Import an image with a single layer that contains busybox; it is also used as the pause image."""
        archive = self.folder / "image.tar"
        archive.write_bytes(_image())
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", "images", "import", str(archive)]
        subprocess.run([*command, "--snapshotter", "native"], check=True, stdout=subprocess.DEVNULL)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def close(self) -> None:
        """End every pod and the runtime."""
        if self._process is None:
            self.start()
        self.end_pods()
        self.stop()
        _reap_shims()
        for base in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*")):
            folder = base / self.parent.lstrip("/")
            if folder.is_dir():
                for path in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
                    path.rmdir()
                folder.rmdir()

    def end_pods(self) -> None:
        for sandbox in list(self._configs):
            self.end_pod(sandbox)

    def pod(self, name: str, annotations: dict[str, str] | None = None, uid: str = "") -> str:
        """Run a pod's sandbox and return its ID."""
        host = self._message("NamespaceOption", network=_HOST)
        config = self._message(
            "PodSandboxConfig",
            metadata=self._message("PodSandboxMetadata", name=name, uid=uid or f"uid-{name}", namespace="default"),
            annotations=annotations or {},
            linux=self._message(
                "LinuxPodSandboxConfig",
                cgroup_parent=f"{self.parent}/{name}",
                security_context=self._message("LinuxSandboxSecurityContext", namespace_options=host),
            ),
        )
        request = self._message("RunPodSandboxRequest", config=config)
        sandbox: str = self._call("RunPodSandbox", request, "RunPodSandboxResponse").pod_sandbox_id
        self._configs[sandbox] = config
        return sandbox

    def adopt(self, sandbox: str) -> None:
        """End a sandbox that a kubelet created together with those of the test."""
        self._configs.setdefault(sandbox, None)

    def container(self, sandbox: str, name: str = "main", attempt: int = 0) -> str:
        """Run a container that sleeps and return its ID."""
        host = self._message("NamespaceOption", network=_HOST)
        config = self._message(
            "ContainerConfig",
            metadata=self._message("ContainerMetadata", name=name, attempt=attempt),
            image=self._message("ImageSpec", image=IMAGE),
            command=["/bin/busybox", "sleep", "100000"],
            linux=self._message(
                "LinuxContainerConfig",
                security_context=self._message("LinuxContainerSecurityContext", namespace_options=host),
            ),
        )
        request = self._message(
            "CreateContainerRequest", pod_sandbox_id=sandbox, config=config, sandbox_config=self._configs[sandbox]
        )
        container: str = self._call("CreateContainer", request, "CreateContainerResponse").container_id
        self._call("StartContainer", self._message("ContainerRequest", container_id=container), "Empty")
        return container

    def end_container(self, container: str) -> None:
        for method in ("StopContainer", "RemoveContainer"):
            self._call(method, self._message("ContainerRequest", container_id=container), "Empty")

    def end_pod(self, sandbox: str) -> None:
        for method in ("StopPodSandbox", "RemovePodSandbox"):
            self._call(method, self._message("PodSandboxRequest", pod_sandbox_id=sandbox), "Empty")
        self._configs.pop(sandbox)

    def _call(self, method: str, request: Any, answer: str) -> Any:
        options = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
        with grpc.insecure_channel(f"unix:{self.socket}", options=options) as channel:
            call: Callable[..., Any] = channel.unary_unary(
                _SERVICE + method,
                request_serializer=type(request).SerializeToString,
                response_deserializer=type(self._message(answer)).FromString,
            )
            return call(request, timeout=30)


def _adopt(adopt: bool) -> None:
    """Set whether orphaned processes, such as those of shims, become children of this process."""
    assert ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) == 0


def _reap_shims() -> None:
    """Wait for every adopted shim; each ends because its pods are deleted."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            if name.startswith("containerd-shim") and int(rest.split()[1]) == os.getpid():
                os.waitpid(int(stat.parent.name), 0)
    _adopt(False)


@contextmanager
def running() -> Iterator[Containerd]:
    """Run a private containerd with the image."""
    folder = Path(tempfile.mkdtemp(prefix="hetsched-cri-"))
    containerd = Containerd(folder)
    try:
        containerd.start()
        containerd.add_image()
        yield containerd
    finally:
        containerd.close()
        shutil.rmtree(folder)


def cpuset_file(container: str) -> Path:
    """Return the cpuset file of a container, found without the agent's code."""
    bases = ((Path("/sys/fs/cgroup/cpuset"), "cpuset.cpus"), (Path("/sys/fs/cgroup"), "cpuset.cpus.effective"))
    for base, name in bases:
        for path in base.rglob(f"*{container}*") if base.is_dir() else ():
            if (path / name).exists():
                return path / name
    raise FileNotFoundError(container)


def _image() -> bytes:
    layer = _tar({"bin/busybox": Path(shutil.which("busybox") or "/bin/busybox").read_bytes()}, mode=0o755)
    config = json.dumps(
        {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine),
            "os": "linux",
            "config": {"Entrypoint": ["/bin/busybox", "sleep", "100000"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer).hexdigest()}"]},
        }
    ).encode()
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    return _tar({"manifest.json": json.dumps(manifest).encode(), "config.json": config, "layer.tar": layer})


def _tar(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))
    return target.getvalue()
