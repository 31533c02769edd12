"""Under which address a client is counted.

Rule: the peer's address, which the web server takes from the proxies in FORWARDED_ALLOW_IPS and from nobody else; no
header is read here. IPv6 counts by /64, which is what one customer has at the least; IPv4 inside IPv6 as IPv4.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any


def address_key(request: Any) -> str:
    """Return the address of a request's client, as limits count it; "unknown" where there is none."""
    return counted_as(request.META.get("REMOTE_ADDR", ""))


def counted_as(peer: str) -> str:
    """Return what an address of a peer is counted as; "unknown" for what is none."""
    try:
        address = ip_address(peer)
    except ValueError:
        return "unknown"
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return str(ip_network((int(address), 64), strict=False))
        address = address.ipv4_mapped
    return str(address)
