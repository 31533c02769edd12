"""The real kube-scheduler as the other scheduler of a test control plane."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator

import pytest

from .control_plane import ControlPlane, find


@contextlib.contextmanager
def kube_scheduler(plane: ControlPlane) -> Iterator[None]:
    """Run kube-scheduler until the block ends; skip the test if the program is missing."""
    program = find("kube-scheduler")
    if program is None:
        pytest.skip("kube-scheduler is not there")
    kubeconfig = plane.folder / "foreign.json"
    kubeconfig.write_text(json.dumps(plane.kubeconfig()))
    with (plane.folder / "kube-scheduler.log").open("wb") as log:
        running = subprocess.Popen(
            [
                str(program), f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0",
                f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}",
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        running.terminate()
        running.wait(20)
