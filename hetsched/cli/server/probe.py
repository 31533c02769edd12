"""Liveness probe of one program over HTTP, without blocking its supervisor.

The probe sends one request at a time: it connects, sends `GET /livez` and waits for the first bytes of a response; any
status means that the program responds.
The socket listens before the program starts, so the first request waits in the backlog until the program accepts it. If
the connection of a request breaks, the request is sent again, and the time is still measured from the first attempt.
"""

from __future__ import annotations

import contextlib
import socket

ASK_EVERY_SECONDS = 5.0
CONNECT_SECONDS = 0.5  # the kernel accepts connections for the program, so this expires only if the backlog is full
_QUESTION = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Probe:
    """Probe of one program over a loopback socket on which only this program accepts connections."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=8)
        self._connection: socket.socket | None = None
        self._asked_at: float | None = None
        self._ask_at = 0.0
        self.answered = False  # whether the program has responded since its start

    @property
    def descriptor(self) -> int:
        return self._listener.fileno()

    def silent_seconds(self, now: float) -> float:
        """Send a request or read its response; return the seconds since an unanswered request was sent, or 0."""
        if self._asked_at is None:
            if now < self._ask_at:
                return 0.0
            self._asked_at = now
        if self._connection is None:
            self._ask()
        if self._has_answer():
            self.reset()
            self.answered, self._ask_at = True, now + ASK_EVERY_SECONDS
            return 0.0
        return now - self._asked_at

    def reset(self) -> None:
        """Discard the open request; called when the program has ended or has responded."""
        self._disconnect()
        self._asked_at, self.answered, self._ask_at = None, False, 0.0

    def _ask(self) -> None:
        with contextlib.suppress(OSError):
            self._connection = socket.create_connection(self._listener.getsockname(), timeout=CONNECT_SECONDS)
            self._connection.setblocking(False)
            self._connection.send(_QUESTION)

    def _has_answer(self) -> bool:
        if self._connection is None:
            return False
        try:
            if self._connection.recv(64):
                return True
        except BlockingIOError:
            return False
        except OSError:
            pass
        self._disconnect()
        return False

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
