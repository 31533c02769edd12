"""Faults between hetsched and a real API server: a connection that is cut or silent, or a server that is killed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
from hetsched.adapters.kubernetes.parallel_calls import ParallelCalls
from tests.system import link

from .control_plane import ControlPlane


class Link(link.Link):
    """A TCP proxy for an API server."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane.port)
        self._kubeconfig = plane.kubeconfig()

    def api(self) -> Api:
        """Return an administrator's API client that uses this proxy."""
        (cluster,) = self._kubeconfig["clusters"]
        cluster["cluster"]["server"] = f"https://127.0.0.1:{self.port}"
        return Api(from_kubeconfig(self._kubeconfig))


def kill_api_server(plane: ControlPlane) -> None:
    """Kill the API server and start it again on the same store, without its watch history."""
    position, server = next(
        (position, process)
        for position, process in enumerate(plane._processes)
        if str(process.args[0]).endswith("kube-apiserver")  # type: ignore[index]
    )
    server.kill()
    server.wait()
    with (plane.folder / "kube-apiserver.log").open("ab") as log:
        plane._processes[position] = subprocess.Popen(
            server.args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=plane.folder, start_new_session=True
        )
    plane.wait_until_ready()


@contextmanager
def replies(api: Api, *, to: str, respond: Any) -> Iterator[list[float]]:
    """Replace responses to calls whose path ends with `to` by the result of `respond`; yield the times of the calls.

    `respond` is called with a function that makes the real call. Dry runs are not changed. Threads make all calls.
    """
    real, calls = api.send, []

    def send(method: str, path: str, *arguments: Any, **more: Any) -> bytes:
        if not path.endswith(to) or "dryRun" in (more.get("query") or {}):
            return real(method, path, *arguments, **more)
        calls.append(time.monotonic())
        answer: bytes = respond(len(calls), lambda: real(method, path, *arguments, **more))
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParallelCalls, "start", lambda *_, **__: False)
        patch.setattr(api, "send", send)
        yield calls


def refusal(status: int, *, retry_after: float = 0.0) -> ApiFailure:
    return ApiFailure(status, "Fault", "made by a test", retry_after)
