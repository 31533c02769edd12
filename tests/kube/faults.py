"""Faults between the product and a real API server: a link that is cut or falls silent, a server that is killed."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from hetsched.adapters.kube.api import Api, ApiFailure
from hetsched.adapters.kube.connection import from_kubeconfig

from .control_plane import ControlPlane


class Link:
    """A TCP link to an API server; `cut` ends all connections and refuses new ones, `silent` holds back every byte."""

    def __init__(self, plane: ControlPlane) -> None:
        self._target = plane.port
        self._kubeconfig = plane.kubeconfig()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self.is_cut = False
        self._flows = threading.Event()
        self._flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._flows.set()
        self._listener.close()

    def api(self) -> Api:
        """Return an administrator's calls over this link."""
        (cluster,) = self._kubeconfig["clusters"]
        cluster["cluster"]["server"] = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        return Api(from_kubeconfig(self._kubeconfig))

    def cut(self) -> None:
        self.is_cut = True
        for end in list(self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self.is_cut = False
        self._flows.set()

    def silence(self) -> None:
        """Let nothing through, in either direction, without ending anything."""
        self._flows.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self.is_cut:
                    near.close()
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                self._open |= {near, far}
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()  # the other direction closes the other end


def kill_api_server(plane: ControlPlane) -> None:
    """End the API server at once and start it again on the same store, without what it remembered of history."""
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
def replies(api: Api, *, to: str, say: Any) -> Iterator[list[float]]:
    """Answer calls whose path ends with `to` by what `say` returns or raises, given the real call; yield the times.

    Dry runs go through.
    """
    real, calls = api.send, []

    def send(method: str, path: str, *arguments: Any, **more: Any) -> bytes:
        if not path.endswith(to) or "dryRun" in (more.get("query") or {}):
            return real(method, path, *arguments, **more)
        calls.append(time.monotonic())
        answer: bytes = say(len(calls), lambda: real(method, path, *arguments, **more))
        return answer

    api.send = send  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        del api.send  # type: ignore[method-assign]


def refusal(status: int, *, retry_after: float = 0.0) -> ApiFailure:
    return ApiFailure(status, "Fault", "made by a test", retry_after)
