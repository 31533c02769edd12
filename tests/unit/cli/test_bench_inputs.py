"""`hetsched bench cluster` rejects an unusable API server or program before it measures."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from tests.unit.adapters.kubeconfigs import kubeconfig
from tests.unit.cli.calling import run


@pytest.fixture
def unreachable(tmp_path: Path) -> Path:
    """Return a kubeconfig whose API server refuses connections."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(cluster={"server": f"https://127.0.0.1:{port}"})))
    return path


def test_unreachable_api_server_is_an_error_with_a_remedy(unreachable: Path) -> None:
    result = run("bench", "cluster", "--kubeconfig", unreachable, "--kube-scheduler", sys.executable)
    assert result.exit_code == 3
    assert "error [ApiServerFailed] API server: Unreachable" in result.stderr
    assert "Check the server address of the context" in result.stderr


def test_program_that_cannot_be_run_is_named(unreachable: Path) -> None:
    result = run("bench", "cluster", "--kubeconfig", unreachable, "--kube-scheduler", unreachable)
    assert result.exit_code == 2
    assert f"error [ProgramMissing] --kube-scheduler: {unreachable} is not an executable program" in result.stderr
