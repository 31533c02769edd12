"""GET requests to registries, their token services and redirect targets, through `hetsched.adapters.http.outbound`.

Registries must be allowed by the deployment; their token services and redirects may be at any public https address. A
call takes at most `SECONDS`, and waits for data at most `QUIET_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hetsched.adapters.http import outbound
from hetsched.adapters.http.outbound import AllowedHosts, OutboundResponse

from .documents import MAX_DOCUMENT_BYTES

__all__ = ["AllowedHosts", "ImageUnreadable", "OutboundResponse", "get"]

SECONDS = 10.0
QUIET_SECONDS = 5.0
_CODES = {
    "HostUnreachable": "RegistryUnreachable",
    "HostUntrusted": "RegistryUntrusted",
    "HostSlow": "RegistrySlow",
    "AnswerTooLarge": "DocumentTooLarge",
    "AnswerUnreadable": "ImageMalformed",
}


class ImageUnreadable(Exception):
    """An image could not be looked up; `code` is stable, the message is human-readable and quotes no response.

    `wait_seconds` is the registry's Retry-After value, 0 if absent.
    """

    def __init__(self, code: str, message: str, wait_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.wait_seconds = wait_seconds


def get(
    url: str, headers: Mapping[str, str], allowed: AllowedHosts, *, most: int = MAX_DOCUMENT_BYTES
) -> OutboundResponse:
    """Fetch one address; redirects are returned like other responses. Raises: ImageUnreadable."""
    public = msgspec.structs.replace(allowed, hosts=allowed.hosts | {"*"})
    try:
        return outbound.call(url, public, headers=headers, most=most, seconds=SECONDS, quiet_seconds=QUIET_SECONDS)
    except outbound.OutboundError as refused:
        raise ImageUnreadable(_CODES.get(refused.code, refused.code), refused.message) from None
