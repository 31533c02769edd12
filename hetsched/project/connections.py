"""HTTP connections with limits: a deadline for each request head and a limit for each address.

uvicorn waits indefinitely for a request head, and `--limit-concurrency` counts all clients together, so one client that
opens idle connections could use up the connections of all others. Here a head must be complete `HETSCHED_HEAD_SECONDS`
after the connection was opened, or after the first byte of a further request on it; idle connections end after the
keep-alive timeout. The kernel ends a connection whose client does not read a response for `HETSCHED_UNREAD_SECONDS`. An
address may have `HETSCHED_CONNECTIONS_PER_ADDRESS` open HTTP connections in each web process; further connections are
closed immediately. Named proxies (`FORWARDED_ALLOW_IPS`) are exempt because all their clients share their address, and
so is the supervisor's probe. WebSockets of an address are counted separately, from the handshake until TCP is closed.
`web.live.sockets` limits the WebSockets that are served, and a WebSocket that it closed stays open until its client
responds or `close_timeout` (10 s) ends, so the limit here is twice `HETSCHED_SOCKETS_PER_ADDRESS`.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from ipaddress import ip_address, ip_network
from typing import Any

import structlog
from django.conf import settings
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from hetsched.access.addresses import peer_key

WARNING_SECONDS = 60.0
log = structlog.get_logger(__name__)


class Peers:
    """Set of addresses and networks in uvicorn's format, where a lone `*` matches all; other names match literally."""

    def __init__(self, names: Sequence[str]) -> None:
        self._all = list(names) == ["*"]
        self._names, self._networks = set[str](), []
        for name in names:
            try:
                self._networks.append(ip_network(name))
            except ValueError:
                self._names.add(name)

    def __contains__(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return self._all or host in self._names
        return self._all or any(address in network for network in self._networks)


class AddressLimit:
    """Limit on the open connections of each client address in this process."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self.open: Counter[str] = Counter()
        self.probe_port: int | None = None
        self._exempt = Peers(settings.HETSCHED_NAMED_PROXIES)
        self._warned_at = -WARNING_SECONDS

    def take(self, client: tuple[str, int] | None, server: tuple[str, int | None] | None) -> str | None:
        """Count a connection and return its key, "" if it is exempt, or None if its address has too many."""
        if client is None or client[0] in self._exempt or (server and server[1] == self.probe_port):
            return ""
        key = peer_key(client[0])
        most = self._most()
        if self.open[key] >= most:
            now = time.monotonic()
            if now - self._warned_at >= WARNING_SECONDS:
                self._warned_at = now
                log.warning("connections.too_many", address=key, most=most)
            return None
        self.open[key] += 1
        return key

    def release(self, key: str) -> None:
        if key:
            self.open[key] -= 1
            if not self.open[key]:
                del self.open[key]


addresses = AddressLimit(lambda: settings.HETSCHED_CONNECTIONS_PER_ADDRESS)
web_sockets = AddressLimit(lambda: 2 * settings.HETSCHED_SOCKETS_PER_ADDRESS)


def _set_unread_timeout(connection: Any) -> None:
    if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):  # only on Linux
        milliseconds = settings.HETSCHED_UNREAD_SECONDS * 1000
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


class BoundedHttp(H11Protocol):
    """HTTP connection of uvicorn with a deadline for request heads."""

    _address = ""
    _head_timer: asyncio.TimerHandle | None = None
    _upgraded = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        key = addresses.take(self.client, self.server)
        if key is None:
            transport.abort()
            return
        self._address = key
        _set_unread_timeout(transport.get_extra_info("socket"))
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_head_timer()
        elif self._head_timer is None and not self._upgraded and not self.transport.is_closing():
            self._start_head_timer()

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._release()
        self._upgraded = True
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        super().connection_lost(exc)

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(settings.HETSCHED_HEAD_SECONDS, self.transport.abort)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _release(self) -> None:
        self._stop_head_timer()
        addresses.release(self._address)
        self._address = ""


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """WebSocket of uvicorn, counted by address until its TCP connection is closed."""

    _address = ""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        key = web_sockets.take(self.client, self.server)
        if key is None:
            transport.abort()
            return
        self._address = key

    def connection_lost(self, exc: Exception | None) -> None:
        web_sockets.release(self._address)
        self._address = ""
        super().connection_lost(exc)
