"""Listening socket that bounds the TLS handshakes of an address.

asyncio gives a connection to its protocol, and uvicorn counts it, after the TLS handshake. Until then a silent client
would hold one descriptor for each TCP connection, without a limit for its address. Here connections count from `accept`
on until their handshake ends or they are closed; one more than `HETSCHED_CONNECTIONS_PER_ADDRESS` is closed at once.
"""

from __future__ import annotations

import socket
from typing import Any

from django.conf import settings

from .connections import AddressLimit

handshakes = AddressLimit(lambda: settings.HETSCHED_CONNECTIONS_PER_ADDRESS)
_keys: dict[int, str] = {}  # by descriptor


def end_handshake(descriptor: int) -> None:
    """Count the connection of this descriptor no longer."""
    handshakes.give_back(_keys.pop(descriptor, ""))


class _Accepted(socket.socket):
    """Connection that is counted no longer once it is closed."""

    def close(self) -> None:
        end_handshake(self.fileno())
        super().close()


class BoundedListener(socket.socket):
    """Listening socket of a server that ends TLS."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept the next connection of an address within its limit. Raises: BlockingIOError without one."""
        while True:
            connection, client = super().accept()
            key = handshakes.take(client[:2], None)
            if key is None:
                connection.close()
                continue
            accepted = _Accepted(fileno=connection.detach())
            _keys[accepted.fileno()] = key
            return accepted, client
