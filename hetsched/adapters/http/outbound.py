"""Egress filter for HTTP calls to hosts that other parties named, and for connections to API servers.

An address in a manifest, a submission or a setting makes the server call a host that another party chose. That host may
be in the deployment's own network (SSRF), never respond, or never stop sending. A deployment lists the hosts per
integration (`AllowedHosts`); by default none are allowed. A name is resolved once, every address of the result is
checked, and the connection is made to one of these addresses; TLS verifies the name. Public addresses are allowed.
Private addresses are allowed only for hosts that are listed by name, and loopback addresses only for listed hosts with
a loopback name. Link-local addresses and cloud metadata services are never allowed. http is allowed only for hosts that
are listed for it, and ports other than 443 only for listed hosts. Credentials in an address, unusual spellings and
schemes other than http and https are refused. Redirects are returned like other responses and not followed, proxies are
not used, and compression is not accepted. The whole call, from the DNS look-up to the last byte, takes at most
`seconds`, and at most `most` bytes are read. The body of an error response is not read, so no message quotes it.
Source: OWASP Server-Side Request Forgery Prevention Cheat Sheet; RFC 6890; RFC 6052 (NAT64).
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import NoReturn
from urllib.parse import SplitResult, urlsplit

import msgspec

from hetsched.contracts.message import Message, as_message

SECONDS = 5.0
MOST_BYTES = 256 << 10
LONGEST_URL = 2048

_ANY = "*"
_AGENT = "hetsched"
# Characters of a valid address; all other characters must be percent-encoded.
_URL = re.compile(r"[!#-;=?-\[\]_a-z~]+", re.ASCII)
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,252}[a-z0-9_])?|\[[0-9a-f:.]{2,45}\]", re.ASCII)
_PLACE = re.compile(rf"({_HOST.pattern})(:[0-9]{{1,5}})?", re.ASCII)
_NAT64 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
# Reserved ranges that are neither public nor private networks; no host in them may be called.
_NOWHERE = tuple(map(ipaddress.ip_network, ("0.0.0.0/8", "240.0.0.0/4", "::/96", "fec0::/10")))
_SHARED = ipaddress.ip_network("100.64.0.0/10")
# Metadata services of clouds outside the link-local range.
_METADATA = frozenset(
    map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)


class OutboundError(Exception):
    """A call got no usable response; `code` is stable, the message is human-readable and quotes no response."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = as_message(message)


class AllowedHosts(msgspec.Struct, frozen=True):
    """Hosts that a deployment allows: `hosts` lists each as `host` or `host:port`, or `*` for all public hosts.

    Hosts in `plain` may also be called without TLS, if the scheme of the address is http.
    """

    hosts: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.hosts or self.plain)

    def reads(self, host: str) -> bool:
        """Return whether this host may be called."""
        return _ANY in self.hosts or self.names(host)

    def names(self, host: str) -> bool:
        """Return whether the deployment lists this host by name."""
        return not _spellings(host).isdisjoint(self.hosts | self.plain)

    def is_plain(self, host: str) -> bool:
        return not _spellings(host).isdisjoint(self.plain)


class OutboundResponse(msgspec.Struct, frozen=True):
    """A response; header names are in lower case. The body is not read if the status is 300 or above."""

    status: int
    headers: dict[str, str]
    body: bytes


def is_place(text: str) -> bool:
    """Return whether a text is `host` or `host:port`, as `AllowedHosts` expects them."""
    return _PLACE.fullmatch(text.lower()) is not None


def check(url: str, allowed: AllowedHosts) -> SplitResult:
    """Run the checks of an address that do not need DNS, and return the parts of the address. Raises: OutboundError."""
    if len(url) > LONGEST_URL or not _URL.fullmatch(url):
        _refuse("AddressRefused", Message("{text} is not a valid URL", text=repr(url[:100])))
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        _refuse("AddressRefused", Message("{text} is not a valid URL", text=repr(url[:100])))
    host = parts.netloc
    if parts.scheme not in ("http", "https") or "@" in host or not _PLACE.fullmatch(host.lower()):
        _refuse("AddressRefused", Message("{text} is not an http or https host", text=repr(_shown(host))))
    if not allowed.reads(_full(parts)):
        _refuse("HostNotAllowed", Message("this server is not allowed to call {host}", host=host))
    if parts.scheme == "http" and not allowed.is_plain(_full(parts)):
        _refuse("AddressRefused", Message("{host} would be called without TLS", host=host))
    if port not in (None, 443) and not allowed.names(host):
        _refuse(
            "AddressRefused",
            Message("{host} uses a port other than 443 and is not listed as an allowed host", host=host),
        )
    return parts


def call(
    url: str,
    allowed: AllowedHosts,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    most: int = MOST_BYTES,
    seconds: float = SECONDS,
    quiet_seconds: float | None = None,
) -> OutboundResponse:
    """Make one call; `quiet_seconds` limits the time without data from the server. Raises: OutboundError."""
    parts = check(url, allowed)
    host, name = parts.netloc, parts.hostname or ""
    until = time.monotonic() + seconds
    quiet = min(seconds, quiet_seconds or seconds)
    plain = _connect(_addresses(name, _port(parts), allowed, quiet), _port(parts), host, quiet)
    connection = http.client.HTTPConnection(host)
    connection.auto_open = 0
    connection.sock, ends = plain, [plain]
    # Each read has its own timeout, so a slow server could exceed the deadline. A timer closes the connection at the
    # deadline, which also ends a read.
    clock = threading.Timer(max(until - time.monotonic(), 0.05), _end, [ends])
    clock.daemon = True
    clock.start()
    try:
        if parts.scheme == "https":
            connection.sock = secured = _trust().wrap_socket(plain, server_hostname=name, do_handshake_on_connect=False)
            ends[0] = secured
            secured.do_handshake()
        sent = {"Host": host, "User-Agent": _AGENT, "Accept-Encoding": "identity", "Connection": "close"}
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(method, path, body=body, headers={**sent, **(headers or {})})
        with connection.getresponse() as answer:
            found = _read(answer, host, most)
        if time.monotonic() >= until:  # the timer may have cut off the headers, which are then parsed without an error
            raise TimeoutError
        return found
    except ssl.SSLCertVerificationError as error:
        _refuse(
            "HostUntrusted",
            Message("the TLS certificate of {host} is not trusted: {text}", host=host, text=error.verify_message),
        )
    except (OSError, http.client.HTTPException, ValueError) as error:
        if time.monotonic() >= until or isinstance(error, TimeoutError):
            _refuse("HostSlow", Message("{host} did not respond within {seconds} s", host=host, seconds=f"{seconds:g}"))
        _refuse(
            "HostUnreachable", Message("{host} closed the connection: {text}", host=host, text=type(error).__name__)
        )
    finally:
        clock.cancel()
        connection.close()


def reach(name: str, port: int, seconds: float) -> socket.socket:
    """Connect to a server that an operator configured, such as an API server; private addresses are allowed.

    Loopback is allowed only under a loopback name; link-local addresses and cloud metadata services are never allowed.
    Raises: OutboundError.
    """
    found = _resolve(name.strip("[]"), port, seconds)
    _refuse_inside(name, found, named=True)
    return _connect(found, port, name, seconds)


def _read(answer: http.client.HTTPResponse, host: str, most: int) -> OutboundResponse:
    found = {key.lower(): value for key, value in answer.getheaders()}
    if answer.status >= 300 or not most:
        return OutboundResponse(answer.status, found, b"")
    if found.get("content-encoding", "identity").lower() != "identity":
        _refuse("AnswerUnreadable", Message("{host} sent a compressed response that was not requested", host=host))
    body = answer.read(most + 1)
    if len(body) > most:
        _refuse("AnswerTooLarge", Message("{host} sent more than {n} bytes", host=host, n=most))
    if answer.length:
        raise http.client.IncompleteRead(body, answer.length)
    return OutboundResponse(answer.status, found, body)


@lru_cache(maxsize=1)
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()


def _end(ends: list[socket.socket]) -> None:
    with suppress(OSError):
        # Call the method of the plain socket, because that of a TLS socket drops the TLS session, which the reading
        # thread still uses.
        socket.socket.shutdown(ends[0], socket.SHUT_RDWR)


def _connect(addresses: list[str], port: int, host: str, seconds: float) -> socket.socket:
    """Connect to the first address that accepts the connection. Raises: OutboundError."""
    until, why = time.monotonic() + seconds, ""
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout=max(until - time.monotonic(), 0.05))
        except OSError as error:
            why = why or error.strerror or type(error).__name__
    _refuse("HostUnreachable", Message("{host} does not respond: {text}", host=host, text=why))


def _addresses(name: str, port: int, allowed: AllowedHosts, seconds: float) -> list[str]:
    """Resolve a host; if one of its addresses is not allowed, the whole host is refused. Raises: OutboundError."""
    found = _resolve(name.strip("[]"), port, seconds)
    _refuse_inside(name, found, named=allowed.names(_with_port(name, port)))
    return found


def _refuse_inside(name: str, found: list[str], *, named: bool) -> None:
    for address in found:
        if not _may_call(address, named=named, loopback=named and _is_loopback_name(name)):
            _refuse("AddressRefused", Message("{name} has an address in a network that is not allowed", name=name))


def _resolve(name: str, port: int, seconds: float) -> list[str]:
    """Resolve a name in a thread, because the resolver has no timeout. Raises: OutboundError."""
    found: list[list[str]] = []

    def ask() -> None:
        with suppress(OSError, UnicodeError):
            entries = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            found.append(list(dict.fromkeys(str(entry[4][0]) for entry in entries)))

    asking = threading.Thread(target=ask, name="look-up", daemon=True)
    asking.start()
    asking.join(seconds)
    if not found or not found[0]:
        _refuse(
            "HostUnreachable",
            Message("host {name} does not exist or did not resolve in time", name=repr(name[:100])),
        )
    return found[0]


def _may_call(text: str, *, named: bool, loopback: bool) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if any(address in network for network in _NAT64):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return _may_call(str(inner), named=named, loopback=loopback)
    if address.is_loopback:
        return loopback
    if address.is_link_local or address.is_multicast or address.is_unspecified or address in _METADATA:
        return False
    if any(address in network for network in _NOWHERE if network.version == address.version):
        return False
    if address.version == 4 and address in _SHARED:
        return named
    return address.is_global or (named and address.is_private)


def _is_loopback_name(name: str) -> bool:
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _full(parts: SplitResult) -> str:
    """Return the host with its explicit or default port."""
    return _with_port(parts.hostname or "", _port(parts))


def _with_port(name: str, port: int) -> str:
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _spellings(host: str) -> set[str]:
    """Return the spellings under which a host may be listed: as given, and without its port."""
    name = urlsplit(f"//{host.lower()}").hostname or ""
    return {host.lower(), name, f"[{name}]"}


def _shown(host: str) -> str:
    """Return a host without embedded credentials."""
    return host.rpartition("@")[2][:100]


def _refuse(code: str, message: str) -> NoReturn:
    raise OutboundError(code, message)
