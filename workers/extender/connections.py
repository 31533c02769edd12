"""Bound the extender's connections, so that callers without a listed certificate cannot displace kube-scheduler.

A connection is *unverified* from its accept until its handshake ends with a certificate on the list of clients.
Unverified connections have a small pool: at most `UNVERIFIED` at once and `PER_ADDRESS` per address; each is closed
`HANDSHAKE_SECONDS` after its accept. A full pool closes its oldest connection, so a new caller always gets a slot and
keeps it for the duration of a handshake. An address with an earlier verified connection uses a second pool without the
limit per address: kube-scheduler opens many connections at once when it binds. Verified connections have `VERIFIED`
slots that no other connection takes, at most `PER_CLIENT` of them for one client of the list.
The port for probes has a pool of its own.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress
from socket import SHUT_RDWR, socket
from typing import NamedTuple

HANDSHAKE_SECONDS = 5.0
UNVERIFIED = 32
PER_ADDRESS = 4
VERIFIED = 128
PER_CLIENT = VERIFIED // 2
KNOWN_ADDRESSES = 256


class _Open(NamedTuple):
    connection: socket
    address: str
    deadline: float  # of time.monotonic()


class Pool:
    """At most `most` connections, `per_address` of them from one address; each is closed `seconds` after its accept."""

    def __init__(self, most: int, seconds: float, *, per_address: int | None = None) -> None:
        self.most = most
        self.seconds = seconds
        self._per_address = most if per_address is None else per_address
        self._lock = threading.Lock()
        self._open: dict[int, _Open] = {}  # by id of the connection, the oldest first

    def admit(self, connection: socket, address: str) -> None:
        """Add a new connection; if its address or the pool is full, close the oldest connection there."""
        with self._lock:
            same = [one for one in self._open.values() if one.address == address]
            if len(same) >= self._per_address:
                self._close(same[0])
            elif len(self._open) >= self.most:
                self._close(next(iter(self._open.values())))
            self._open[id(connection)] = _Open(connection, address, time.monotonic() + self.seconds)

    def release(self, connection: socket) -> str | None:
        """Remove a connection without closing it; return its address, None if it was removed or closed before."""
        with self._lock:
            one = self._open.pop(id(connection), None)
        return one and one.address

    def close_late(self) -> None:
        """Close the connections whose deadline has passed."""
        with self._lock:
            now = time.monotonic()
            for one in [one for one in self._open.values() if one.deadline <= now]:
                self._close(one)

    def _close(self, one: _Open) -> None:
        """Shut a connection down: the next read of its thread fails, and that thread closes the descriptor."""
        self._open.pop(id(one.connection), None)
        with suppress(OSError):
            socket.shutdown(one.connection, SHUT_RDWR)  # SSLSocket.shutdown is not safe to call from a second thread


class Connections:
    """The open connections of the TLS port, verified and unverified."""

    def __init__(self) -> None:
        self.strangers = Pool(UNVERIFIED, HANDSHAKE_SECONDS, per_address=PER_ADDRESS)
        self.acquainted = Pool(UNVERIFIED, HANDSHAKE_SECONDS)  # from addresses of verified callers
        self.most = self.strangers.most + self.acquainted.most + VERIFIED
        self._lock = threading.Lock()
        self._verified: dict[int, str] = {}  # client, by id of the connection
        self._known: dict[str, None] = {}  # addresses of verified callers, the most recent last

    def admit(self, connection: socket, address: str) -> None:
        """Add a new connection; if its address or pool is full, close the oldest connection there."""
        with self._lock:
            pool = self.acquainted if address in self._known else self.strangers
        pool.admit(connection, address)

    def verify(self, connection: socket, client: str) -> bool:
        """Move a connection to the verified ones; False if it was already closed or no slot of its client is free."""
        address = self.strangers.release(connection) or self.acquainted.release(connection)
        with self._lock:
            full = len(self._verified) >= VERIFIED or Counter(self._verified.values())[client] >= PER_CLIENT
            if address is None or full:
                return False
            self._verified[id(connection)] = client
            self._known.pop(address, None)
            self._known[address] = None
            if len(self._known) > KNOWN_ADDRESSES:
                del self._known[next(iter(self._known))]
            return True

    def release(self, connection: socket) -> None:
        """Remove a connection that ended."""
        self.strangers.release(connection)
        self.acquainted.release(connection)
        with self._lock:
            self._verified.pop(id(connection), None)

    def close_late(self) -> None:
        """Close the unverified connections whose deadline has passed."""
        self.strangers.close_late()
        self.acquainted.close_late()
