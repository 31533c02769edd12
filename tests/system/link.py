"""A TCP proxy with faults, for any server on this machine.

`cut` closes all connections and refuses new ones. `silence` stops forwarding without closing connections.
`delay_seconds` delays every chunk of a response. `restore` ends all of these faults.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Self


class Link:
    """Listen on a free port and forward bytes to and from `target`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self.is_cut = False
        self.delay_seconds = 0.0
        self._flows = threading.Event()
        self._flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._flows.set()
        self._listener.close()

    def cut(self) -> None:
        self.is_cut = True
        for end in list(self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        self.is_cut = False
        self.delay_seconds = 0.0
        self._flows.set()

    def silence(self) -> None:
        """Stop forwarding in both directions without closing connections."""
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
                for source, sink, answers in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._carry, args=(source, sink, answers), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                if answers and self.delay_seconds:
                    time.sleep(self.delay_seconds)
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()  # the thread of the other direction closes the other end
