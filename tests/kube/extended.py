"""A real kube-scheduler that asks the extender, as `deploy/extender` configures it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from hetsched.adapters.certificates import make_pairs

from .control_plane import ControlPlane, find

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "extender" / "kube-scheduler.yaml"
NAME = "kube-extended"


def certificates(folder: Path) -> Path:
    """Return a folder with a server pair of loopback and a client pair called `kube-scheduler`."""
    make_pairs(folder, hosts=["127.0.0.1", "localhost"], client="kube-scheduler", days=1)
    return folder


@contextmanager
def kube_scheduler(plane: ControlPlane, folder: Path, port: int, **extender: Any) -> Iterator[Path]:
    """Run it with the shipped configuration, here and there on this machine; gives its log."""
    kubeconfig = folder / "kube-scheduler.kubeconfig"
    kubeconfig.write_text(json.dumps(plane.kubeconfig()))
    config = yaml.safe_load(SHIPPED.read_text())
    config["clientConnection"]["kubeconfig"] = str(kubeconfig)
    config["leaderElection"]["leaderElect"] = False
    (one,) = config["extenders"]
    files = {name: str(folder / "certificates" / "client" / Path(path).name) for name, path in one["tlsConfig"].items()}
    one.update(urlPrefix=f"https://127.0.0.1:{port}/extender", tlsConfig=files, **extender)
    written = folder / "kube-scheduler.json"
    written.write_text(json.dumps(config))
    log = folder / "kube-scheduler.log"
    with log.open("ab") as output:
        running = subprocess.Popen(
            [
                str(find("kube-scheduler")), f"--config={written}", "--secure-port=0", "-v=3",
                f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}",
            ],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        yield log
    finally:
        running.terminate()
        running.wait(20)
