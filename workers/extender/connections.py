"""Bound the extender's connections, so that callers without a listed certificate cannot displace kube-scheduler.

A connection is *unverified* from its accept until its handshake ends with a certificate on the list of clients.
Unverified connections have a small pool: at most `UNVERIFIED` at once and `PER_ADDRESS` per address; each is closed
`HANDSHAKE_SECONDS` after its accept. A full pool closes its oldest connection, so a new caller always gets a slot and
keeps it for the duration of a handshake. An address with an earlier verified connection uses a second pool without the
limit per address: kube-scheduler opens many connections at once when it binds. Verified connections have `VERIFIED`
slots that no other connection takes.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from socket import SHUT_RDWR, socket
from typing import NamedTuple

HANDSHAKE_SECONDS = 5.0
UNVERIFIED = 32
PER_ADDRESS = 4
VERIFIED = 128
KNOWN_ADDRESSES = 256


class _Unverified(NamedTuple):
    connection: socket
    address: str
    known: bool
    deadline: float  # of time.monotonic()


class Connections:
    """The open connections, verified and unverified."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unverified: dict[int, _Unverified] = {}  # by id of the connection, the oldest first
        self._verified: set[int] = set()
        self._known: dict[str, None] = {}  # addresses of verified callers, the most recent last

    def admit(self, connection: socket, address: str) -> None:
        """Add a new connection; if its address or pool is full, close the oldest connection there."""
        with self._lock:
            known = address in self._known
            pool = [one for one in self._unverified.values() if one.known == known]
            same = [one for one in pool if one.address == address]
            if not known and len(same) >= PER_ADDRESS:
                self._close(same[0])
            elif len(pool) >= UNVERIFIED:
                self._close(pool[0])
            deadline = time.monotonic() + HANDSHAKE_SECONDS
            self._unverified[id(connection)] = _Unverified(connection, address, known, deadline)

    def verify(self, connection: socket) -> bool:
        """Move a connection to the verified ones; False if it was already closed or no verified slot is free."""
        with self._lock:
            one = self._unverified.get(id(connection))
            if one is None or len(self._verified) >= VERIFIED:
                return False
            del self._unverified[id(connection)]
            self._verified.add(id(connection))
            self._known.pop(one.address, None)
            self._known[one.address] = None
            if len(self._known) > KNOWN_ADDRESSES:
                del self._known[next(iter(self._known))]
            return True

    def release(self, connection: socket) -> None:
        """Remove a connection that ended."""
        with self._lock:
            self._unverified.pop(id(connection), None)
            self._verified.discard(id(connection))

    def close_late(self) -> None:
        """Close the unverified connections whose deadline has passed."""
        with self._lock:
            now = time.monotonic()
            for one in [one for one in self._unverified.values() if one.deadline <= now]:
                self._close(one)

    def _close(self, one: _Unverified) -> None:
        """Shut a connection down: the next read of its thread fails, and that thread closes the descriptor."""
        self._unverified.pop(id(one.connection), None)
        with suppress(OSError):
            socket.shutdown(one.connection, SHUT_RDWR)  # SSLSocket.shutdown is not safe to call from a second thread
