"""One GET to a host that a tenant's manifest named.

Problem: the name of an image makes us call a host of somebody else's choice, which may lead into our own network, never
answer, or never end.
Rule: a name is resolved once; every address that comes back is checked, and the connection goes to the first of them,
with the name for TLS. Allowed are public addresses; private ones for hosts that the deployment names, loopback for
those it names by a loopback name; link-local ones (cloud metadata) never. https on port 443, except for hosts that are
named; http only for hosts that are named for it. Nobody is asked by way of a proxy. All of it, from connecting to the
last byte, takes at most `SECONDS`, and no more than `most` bytes are read; compression is not accepted.
Source: OWASP Server-Side Request Forgery Prevention Cheat Sheet; RFC 6890; RFC 6052 (NAT64).
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import NoReturn
from urllib.parse import urlsplit

import msgspec

from .documents import MAX_DOCUMENT_BYTES

SECONDS = 10.0
QUIET_SECONDS = 5.0
_ANY = "*"
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_AGENT = "hetsched"


class Unreadable(Exception):
    """An image could not be looked up; `code` is stable, the message is for people and quotes no answer.

    `wait_seconds`: how long a registry asks to be left alone, 0 where it does not.
    """

    def __init__(self, code: str, message: str, wait_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.wait_seconds = wait_seconds


class Allowed(msgspec.Struct, frozen=True):
    """Which registries a deployment reads: `hosts` as `host` or `host:port`, or `*` for all public ones.

    Those of `plain` are read without TLS.
    """

    hosts: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.hosts or self.plain)

    def reads(self, host: str) -> bool:
        """Tell whether images of this registry are looked up."""
        return _ANY in self.hosts or self.names(host)

    def names(self, host: str) -> bool:
        """Tell whether the deployment names this very host."""
        return not _spellings(host).isdisjoint(self.hosts | self.plain)

    def is_plain(self, host: str) -> bool:
        return not _spellings(host).isdisjoint(self.plain)


class Answer(msgspec.Struct, frozen=True):
    """What came back; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def get(url: str, headers: Mapping[str, str], allowed: Allowed, *, most: int = MAX_DOCUMENT_BYTES) -> Answer:
    """Fetch one address; redirects are answers like others. Raises: Unreadable."""
    parts = urlsplit(url)
    host = parts.netloc
    if parts.scheme not in ("https", "http") or not parts.hostname or "@" in host:
        _refuse("AddressRefused", f"{host[:100]!r} is no address of a registry")
    if parts.scheme == "http" and not allowed.is_plain(host):
        _refuse("AddressRefused", f"{host} would be called without TLS")
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        _refuse("AddressRefused", f"{host[:100]!r} is no address of a registry")
    if port != 443 and not allowed.names(host):
        _refuse("AddressRefused", f"{host} is not on port 443, and nobody named it")
    until = time.monotonic() + SECONDS
    address = _address(parts.hostname, port, allowed)
    try:
        plain = socket.create_connection((address, port), timeout=QUIET_SECONDS)
    except OSError as error:
        _refuse("RegistryUnreachable", f"{host} does not answer: {error.strerror or type(error).__name__}")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = http.client.HTTPConnection(host)
    connection.auto_open = 0
    connection.sock, ends = plain, [plain]
    # Whatever trickles in, the connection ends in time: nothing that waits for it is left waiting.
    clock = threading.Timer(max(until - time.monotonic(), 0.1), _end, [ends])
    clock.daemon = True
    clock.start()
    try:
        if parts.scheme == "https":
            connection.sock = secured = _trust().wrap_socket(
                plain, server_hostname=parts.hostname, do_handshake_on_connect=False
            )
            ends[0] = secured
            secured.do_handshake()
        sent = {"Host": host, "User-Agent": _AGENT, "Accept-Encoding": "identity", "Connection": "close", **headers}
        connection.request("GET", path, headers=sent)
        with connection.getresponse() as answer:
            body = answer.read(most + 1) if answer.status < 300 else b""
            if len(body) > most:
                _refuse("DocumentTooLarge", f"{host} sends more than {most} bytes")
            if answer.status < 300 and answer.length:
                raise http.client.IncompleteRead(body, answer.length)
            return Answer(answer.status, {key.lower(): value for key, value in answer.getheaders()}, body)
    except ssl.SSLCertVerificationError as error:
        _refuse("RegistryUntrusted", f"{host} does not prove who it is: {error.verify_message}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        if time.monotonic() >= until or isinstance(error, TimeoutError):
            _refuse("RegistrySlow", f"{host} takes longer than {SECONDS:g} s")
        _refuse("RegistryUnreachable", f"{host} ends the conversation: {type(error).__name__}")
    finally:
        clock.cancel()
        connection.close()


@lru_cache(maxsize=1)
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()


def _end(ends: list[socket.socket]) -> None:
    with suppress(OSError):
        # The plain method: that of a TLS socket would take its keys from the thread that reads.
        socket.socket.shutdown(ends[0], socket.SHUT_RDWR)


def _address(name: str, port: int, allowed: Allowed) -> str:
    """Resolve a host and return the address to connect to. Raises: Unreadable where any of them may not be called."""
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        _refuse("RegistryUnreachable", f"there is no host {name[:100]!r}")
    named = allowed.names(name) or allowed.names(f"{name}:{port}")
    for address in found:
        if not _may_call(address, named=named, loopback=named and _is_loopback_name(name)):
            _refuse("AddressRefused", f"{name} has an address inside a network that nobody opened to us")
    return found[0]


def _may_call(text: str, *, named: bool, loopback: bool) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return _may_call(str(inner), named=named, loopback=loopback)
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        return False
    if address.is_loopback:
        return loopback
    return address.is_global or (named and address.is_private)


def _is_loopback_name(name: str) -> bool:
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _spellings(host: str) -> set[str]:
    """Return a host with and without its port."""
    return {host.lower(), urlsplit(f"//{host.lower()}").hostname or ""}


def _refuse(code: str, message: str) -> NoReturn:
    raise Unreadable(code, message)
