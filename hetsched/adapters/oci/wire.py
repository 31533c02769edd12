"""One GET to a registry, or to where a registry sends us; who may be called is said by
`hetsched.adapters.http.outbound`.

Rule: registries are read where the deployment names them; from there tokens and redirects may lead to any public
https address. At most `SECONDS` in all, `QUIET_SECONDS` of them in silence.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hetsched.adapters.http import outbound
from hetsched.adapters.http.outbound import Allowed, Answer

from .documents import MAX_DOCUMENT_BYTES

__all__ = ["Allowed", "Answer", "Unreadable", "get"]

SECONDS = 10.0
QUIET_SECONDS = 5.0
_CODES = {
    "HostUnreachable": "RegistryUnreachable",
    "HostUntrusted": "RegistryUntrusted",
    "HostSlow": "RegistrySlow",
    "AnswerTooLarge": "DocumentTooLarge",
    "AnswerUnreadable": "ImageMalformed",
}


class Unreadable(Exception):
    """An image could not be looked up; `code` is stable, the message is for people and quotes no answer.

    `wait_seconds`: how long a registry asks to be left alone, 0 where it does not.
    """

    def __init__(self, code: str, message: str, wait_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.wait_seconds = wait_seconds


def get(url: str, headers: Mapping[str, str], allowed: Allowed, *, most: int = MAX_DOCUMENT_BYTES) -> Answer:
    """Fetch one address; redirects are answers like others. Raises: Unreadable."""
    public = msgspec.structs.replace(allowed, hosts=allowed.hosts | {"*"})
    try:
        return outbound.call(url, public, headers=headers, most=most, seconds=SECONDS, quiet_seconds=QUIET_SECONDS)
    except outbound.Refused as refused:
        raise Unreadable(_CODES.get(refused.code, refused.code), refused.message) from None
