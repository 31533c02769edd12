"""Image references as pods write them.

The grammar is `[host[:port]/]path[:tag][@digest]`. The first part is a host if it has a dot or a colon or is
`localhost`. Without a host, the registry is Docker Hub, where a path of a single word is in `library/`. Without tag and
digest, the tag is `latest`; with both, the digest is used.
Source: distribution/reference (grammar and familiar names); Kubernetes documentation, "Images".
"""

from __future__ import annotations

import re

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message

DOCKER_HUB = "docker.io"
MOST_CHARACTERS = 512
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:.]+\])(?::[0-9]{{1,5}})?")
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")


class Reference(msgspec.Struct, frozen=True):
    """One image in one registry; `host` may include a port. Either `tag` or `digest` is empty."""

    host: str
    path: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.host}/{self.path}" + (f"@{self.digest}" if self.digest else f":{self.tag}")


def parse_reference(text: str) -> Reference:
    """Parse an image reference. Raises: InputError `ImageNameInvalid`."""
    rest, _, digest = text.partition("@")
    first, slash, remainder = rest.partition("/")
    if slash and (not {".", ":"}.isdisjoint(first) or first == "localhost"):
        host, rest = first, remainder
    else:
        host = DOCKER_HUB
    path, _, tag = rest.partition(":")
    if host in (DOCKER_HUB, "index.docker.io"):
        host, path = DOCKER_HUB, path if "/" in path else f"library/{path}"
    fits = (
        len(text) <= MOST_CHARACTERS
        and _HOST.fullmatch(host)
        and _PATH.fullmatch(path)
        and (not tag or _TAG.fullmatch(tag))
        and (not digest or _DIGEST.fullmatch(digest))
        and not (text.endswith((":", "@")))
    )
    if not fits:
        raise InputError(
            "ImageNameInvalid",
            Message("{text} is not a valid image name", text=repr(text[:80])),
            hint="write host/path:tag",
        )
    return Reference(host.lower(), path, "" if digest else tag or "latest", digest)
