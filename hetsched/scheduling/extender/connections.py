"""Limits for the extender's connections, so that callers without a listed certificate cannot displace kube-scheduler.

A connection is *unverified* from its accept until its handshake ends with a certificate on the list of clients.
Unverified connections share a small pool of at most `UNVERIFIED` connections, and `PER_ADDRESS` per address. Each is
closed `HANDSHAKE_SECONDS` after its accept. If the pool is full, a new connection replaces the oldest connection of the
address with the most connections, so a new caller always gets a slot and keeps it for the duration of a handshake. An
address with an earlier verified connection uses a second pool of `KNOWN` connections without the limit per address,
because kube-scheduler opens many connections at the same time when it binds.
Verified connections have `VERIFIED` slots of their own, at most `PER_CLIENT` for each listed client. A request (head
and body) and a response have `TRANSFER_SECONDS` each. If all slots are in use, a new connection replaces a connection
of the client with the most connections: the oldest that has made no call yet, else the oldest idle connection, else the
oldest in transfer. Connections without a call are replaced first, because if an idle connection were closed while
kube-scheduler sends its next call, that call would fail with EOF.
The port for probes has a separate pool.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from socket import SHUT_RDWR, socket
from typing import NamedTuple

HANDSHAKE_SECONDS = 5.0
TRANSFER_SECONDS = 10.0
IDLE_SECONDS = 120.0
UNVERIFIED = 32
PER_ADDRESS = 4
KNOWN = 128
VERIFIED = 128
PER_CLIENT = VERIFIED // 2
KNOWN_ADDRESSES = 256


class _OpenConnection(NamedTuple):
    connection: socket
    address: str
    deadline: float  # a time.monotonic() value


class Pool:
    """At most `most` open connections, `per_address` from one address; each is closed `seconds` after its accept."""

    def __init__(self, most: int, seconds: float, *, per_address: int | None = None) -> None:
        self.most = most
        self.seconds = seconds
        self._per_address = most if per_address is None else per_address
        self._lock = threading.Lock()
        self._open: dict[int, _OpenConnection] = {}  # by connection id, oldest first

    def admit(self, connection: socket, address: str) -> None:
        """Add a new connection; if the limit of its address or of the pool is reached, close an older connection."""
        with self._lock:
            same = [one for one in self._open.values() if one.address == address]
            if len(same) >= self._per_address:
                self._close(same[0])
            elif len(self._open) >= self.most:
                self._close(self._oldest_of_the_most(address))
            self._open[id(connection)] = _OpenConnection(connection, address, time.monotonic() + self.seconds)

    def release(self, connection: socket) -> str | None:
        """Remove a connection without closing it; return its address, or None if it was removed or closed before."""
        with self._lock:
            one = self._open.pop(id(connection), None)
        return one and one.address

    def close_late(self) -> None:
        """Close the connections whose deadline has passed."""
        with self._lock:
            now = time.monotonic()
            for one in [one for one in self._open.values() if one.deadline <= now]:
                self._close(one)

    def _oldest_of_the_most(self, arriving: str) -> _OpenConnection:
        """Return the oldest connection of the addresses with the most connections, counting the arriving connection."""
        counts = Counter(one.address for one in self._open.values())
        if arriving in counts:
            counts[arriving] += 1
        most = max(counts.values())
        return next(one for one in self._open.values() if counts[one.address] == most)

    def _close(self, one: _OpenConnection) -> None:
        self._open.pop(id(one.connection), None)
        _shut_down(one.connection)


def _shut_down(connection: socket) -> None:
    """Shut a connection down: the next read of its thread fails, and that thread closes the descriptor."""
    with suppress(OSError):
        socket.shutdown(connection, SHUT_RDWR)  # SSLSocket.shutdown is not safe to call from a second thread


class Phase(IntEnum):
    """State of a verified connection; a connection with a call in progress is never replaced."""

    IDLE = 0
    TRANSFER = 1
    CALL = 2


@dataclass(slots=True)
class _VerifiedConnection:
    connection: socket
    client: str
    phase: Phase
    deadline: float
    has_called: bool = False


class Connections:
    """The open connections of the TLS port, verified and unverified."""

    def __init__(self) -> None:
        self.unverified = Pool(UNVERIFIED, HANDSHAKE_SECONDS, per_address=PER_ADDRESS)
        self.verified_hosts = Pool(KNOWN, HANDSHAKE_SECONDS)  # for addresses of verified callers
        self.most = self.unverified.most + self.verified_hosts.most + VERIFIED
        self._lock = threading.Lock()
        self._verified: dict[int, _VerifiedConnection] = {}  # by connection id, oldest first
        self._known: dict[str, None] = {}  # addresses of verified callers, the most recent last

    def admit(self, connection: socket, address: str) -> None:
        """Add a new connection to its pool; if a limit of the pool is reached, close an older connection."""
        with self._lock:
            pool = self.verified_hosts if address in self._known else self.unverified
        pool.admit(connection, address)

    def verify(self, connection: socket, client: str) -> bool:
        """Move a connection to the verified connections, in phase `IDLE`.

        Return False if it was already closed, or if calls are in progress on all connections that it could replace.
        """
        address = self.unverified.release(connection) or self.verified_hosts.release(connection)
        with self._lock:
            if address is None or not self._has_slot(client):
                return False
            self._verified[id(connection)] = _VerifiedConnection(
                connection, client, Phase.IDLE, time.monotonic() + IDLE_SECONDS
            )
            self._known.pop(address, None)
            self._known[address] = None
            if len(self._known) > KNOWN_ADDRESSES:
                del self._known[next(iter(self._known))]
            return True

    def release(self, connection: socket) -> None:
        """Remove a connection that ended."""
        self.unverified.release(connection)
        self.verified_hosts.release(connection)
        with self._lock:
            self._verified.pop(id(connection), None)

    def enter(self, connection: socket, phase: Phase) -> None:
        """Set the phase of a verified connection and start the phase's deadline; a call in progress has no deadline."""
        seconds = {Phase.IDLE: IDLE_SECONDS, Phase.TRANSFER: TRANSFER_SECONDS}.get(phase, inf)
        with self._lock:
            if (verified := self._verified.get(id(connection))) is not None:
                verified.phase, verified.deadline = phase, time.monotonic() + seconds
                verified.has_called = verified.has_called or phase is Phase.CALL

    def close_late(self) -> None:
        """Close the connections whose deadline has passed."""
        self.unverified.close_late()
        self.verified_hosts.close_late()
        with self._lock:
            now = time.monotonic()
            for verified in [verified for verified in self._verified.values() if verified.deadline <= now]:
                self._close(verified)

    def _has_slot(self, client: str) -> bool:
        """Return True if a client can get a slot; if none is free, replace a connection to free one."""
        counts = Counter(verified.client for verified in self._verified.values())
        if len(self._verified) < VERIFIED and counts[client] < PER_CLIENT:
            return True
        most = client if counts[client] >= PER_CLIENT else max(counts, key=counts.__getitem__)
        waiting = [
            verified
            for verified in self._verified.values()
            if verified.client == most and verified.phase is not Phase.CALL
        ]
        if waiting:
            self._close(
                min(waiting, key=lambda verified: (verified.has_called, verified.has_called and verified.phase))
            )
        return bool(waiting)

    def _close(self, verified: _VerifiedConnection) -> None:
        del self._verified[id(verified.connection)]
        _shut_down(verified.connection)
