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


def _reached(connection: HTTPConnection) -> socket.socket:
    seconds = connection.timeout if isinstance(connection.timeout, (int, float)) else _SECONDS
    try:
        made = reach(connection.host, connection.port, seconds)
    except OutboundError as refused:
        raise urllib3.exceptions.NewConnectionError(connection, refused.message) from None
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class _Plain(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _reached(self)


class _Secured(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _reached(self)


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Plain


class _SecuredPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Secured


GUARDED: dict[str, Any] = {"http": _PlainPool, "https": _SecuredPool}
