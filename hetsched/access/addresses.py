"""Client addresses as keys of rate limits.

The client address is the address of the TCP peer; this module does not read headers. (The web server replaces the peer
by a forwarded address only for the proxies in FORWARDED_ALLOW_IPS.) IPv6 addresses are counted by their /64 prefix, the
smallest prefix that a customer gets. IPv4-mapped IPv6 addresses are treated as IPv4.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any


def address_key(request: Any) -> str:
    """Return the rate limit key for a request's client address, or "unknown" if the request has no address."""
    return peer_key(request.META.get("REMOTE_ADDR", ""))


def peer_key(peer: str) -> str:
    """Return the rate limit key for a peer address, or "unknown" for an invalid address."""
    try:
        address = ip_address(peer)
    except ValueError:
        return "unknown"
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return str(ip_network((int(address), 64), strict=False))
        address = address.ipv4_mapped
    return str(address)
