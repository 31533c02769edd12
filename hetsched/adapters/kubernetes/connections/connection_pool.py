"""Connection pools for the official client that connect through the egress filter.

A watch connects only to destinations that `hetsched.adapters.http.outbound` allows, and uses the address that was
checked.
"""

from __future__ import annotations

import socket
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from hetsched.adapters.http.outbound import OutboundError, reach

_SECONDS = 5.0


def _connect(connection: HTTPConnection) -> socket.socket:
    seconds = connection.timeout if isinstance(connection.timeout, (int, float)) else _SECONDS
    try:
        made = reach(connection.host, connection.port, seconds)
    except OutboundError as refused:
        raise urllib3.exceptions.NewConnectionError(connection, refused.message) from None
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class _GuardedConnection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _connect(self)


class _HttpsConnection(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _connect(self)


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _GuardedConnection


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


GUARDED: dict[str, Any] = {"http": _HttpPool, "https": _HttpsPool}
