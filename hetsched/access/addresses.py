"""Client address as rate limits count it.

The address is that of the peer, which the web server takes from the proxies in FORWARDED_ALLOW_IPS only; this module
reads no header. IPv6 counts by /64, the smallest prefix of one customer; IPv4 mapped into IPv6 counts as IPv4.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any


def address_key(request: Any) -> str:
    """Return the client address of a request as limits count it; "unknown" without one."""
    return peer_key(request.META.get("REMOTE_ADDR", ""))


def peer_key(peer: str) -> str:
    """Return the key under which limits count a peer address; "unknown" for an invalid address."""
    try:
        address = ip_address(peer)
    except ValueError:
        return "unknown"
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return str(ip_network((int(address), 64), strict=False))
        address = address.ipv4_mapped
    return str(address)
