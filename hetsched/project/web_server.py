"""Run uvicorn with the limits of this product: `python -m hetsched.project.web_server`.

Every deployment starts web processes through this module, so that all limits are in the settings. `--fd` is an open
socket that several web processes share; `--probe-fd` is a socket of this process alone, on which its supervisor
requests `/livez`; on the shared socket, another process could respond.

The listening socket limits the TLS handshakes of an address, because asyncio passes a connection to its protocol, and
uvicorn counts it, only after the TLS handshake. Until then, a silent client would hold one descriptor for each TCP
connection, without a limit for its address. Here connections are counted from `accept` until their handshake ends or
they are closed; connections above `HETSCHED_CONNECTIONS_PER_ADDRESS` are closed immediately.
"""

from __future__ import annotations

import argparse
import asyncio.constants
import os
import resource
import socket
import sys
from collections.abc import Sequence
from typing import Any

import uvicorn
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hetsched.project.settings")

from .connections import AddressLimit, BoundedHttp, BoundedWebSocket, addresses

handshakes = AddressLimit(lambda: settings.HETSCHED_CONNECTIONS_PER_ADDRESS)
_keys: dict[int, str] = {}  # file descriptor -> client-address key that is counted in `handshakes`


def end_handshake(descriptor: int) -> None:
    """Stop counting the connection of this descriptor."""
    handshakes.release(_keys.pop(descriptor, ""))


class _Accepted(socket.socket):
    """Connection that counts against its address's limit until it is closed."""

    def close(self) -> None:
        end_handshake(self.fileno())
        super().close()


class BoundedListener(socket.socket):
    """Listening socket of a server that terminates TLS."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept the next connection whose address is below its limit. Raises: BlockingIOError if there is none."""
        while True:
            connection, client = super().accept()
            key = handshakes.take(client[:2], None)
            if key is None:
                connection.close()
                continue
            accepted = _Accepted(fileno=connection.detach())
            _keys[accepted.fileno()] = key
            return accepted, client


# Longer than the usual pauses of a client that reuses its connection, because a request on a closing connection gets no
# response.
KEEP_ALIVE_SECONDS = 30
# Descriptors for files, database connections and broker sockets, in addition to client connections.
OWN_DESCRIPTORS = 512


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="hetsched.project.web_server", description="Serve HTTP and WebSockets.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--fd", type=int, help="file descriptor of a listening socket, instead of host and port")
    parser.add_argument("--probe-fd", type=int, help="file descriptor of a second listening socket, for probes")
    parser.add_argument("--grace-seconds", type=int, default=10, help="time limit of open requests after SIGTERM")
    parser.add_argument("--ssl-certfile", help="certificate chain, if this process terminates TLS")
    parser.add_argument("--ssl-keyfile", help="private key of the certificate")
    given = parser.parse_args(argv)
    found = configuration(given.host, given.port, given.grace_seconds, given.ssl_certfile, given.ssl_keyfile)
    server = uvicorn.Server(found)
    # uvicorn does not set a deadline for TLS handshakes, which precede a request head.
    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = float(settings.HETSCHED_HEAD_SECONDS)
    _raise_descriptor_limit((found.limit_concurrency or 0) + settings.HETSCHED_CONNECTIONS_PER_ADDRESS)
    sockets = [socket.socket(fileno=number) for number in (given.fd, given.probe_fd) if number is not None]
    if given.probe_fd is not None:
        addresses.probe_port = sockets[-1].getsockname()[1]
    if given.ssl_certfile:
        first = sockets[0] if given.fd is not None else found.bind_socket()
        sockets[: int(given.fd is not None)] = [BoundedListener(fileno=first.detach())]
    server.run(sockets or None)
    return 0 if server.started else 3


class BoundedHttps(BoundedHttp):
    """HTTP connection over TLS; from here on, it is counted as a connection and no longer as a handshake."""

    def connection_made(self, transport: Any) -> None:
        end_handshake(transport.get_extra_info("socket").fileno())
        super().connection_made(transport)


def configuration(
    host: str, port: int, grace_seconds: int, certificate: str | None = None, key: str | None = None
) -> uvicorn.Config:
    """Return uvicorn's options, with limits on frames and connections.

    Compression of WebSocket messages is off, to prevent decompression bombs.
    """
    return uvicorn.Config(
        "hetsched.project.asgi:application",
        host=host,
        port=port,
        http=BoundedHttps if certificate else BoundedHttp,
        ws=BoundedWebSocket,
        ws_max_size=65536,
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        server_header=False,
        forwarded_allow_ips=list(settings.HETSCHED_TRUSTED_PROXIES),
        limit_concurrency=settings.HETSCHED_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=grace_seconds,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )


def _raise_descriptor_limit(connections: int) -> None:
    """Raise the soft limit of open files to what this number of connections requires, up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OWN_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


if __name__ == "__main__":
    sys.exit(main())
