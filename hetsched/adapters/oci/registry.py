"""Platforms of one image, read from its registry through the OCI distribution protocol.

The manifest or index of the tag or digest is read and identified by its own sha256; all further documents are read by
digest. A registry that requires a token names its token service; only pull access to this repository is requested.
Credentials are sent to their registry and to the token service that it names, never to another host after a redirect. A
limited number of redirects is followed, only to https addresses and after the same checks as for any other address.
Text from a registry is never passed on.
Source: opencontainers/distribution-spec spec.md; distribution's "Token Authentication Specification"; RFC 9110.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import NoReturn
from urllib.parse import quote, urlencode, urljoin, urlsplit

import msgspec

from hetsched.contracts.errors import InputError

from . import wire
from .documents import MEDIA_TYPES, check_digest, parse_document, platforms_of
from .reference import DOCKER_HUB, Reference
from .wire import AllowedHosts, ImageUnreadable, OutboundResponse

_HUB_API = "registry-1.docker.io"
_MOST_REDIRECTS = 4
_MOST_TOKEN_BYTES = 1 << 18
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_ACCEPT = {"Accept": ", ".join(MEDIA_TYPES)}
_LONGEST_WAIT_SECONDS = 3600.0


class RegistryCredential(msgspec.Struct, frozen=True):
    """Credentials for one registry; `str` and `repr` hide them."""

    user: str
    password: str

    def __repr__(self) -> str:
        return "Credential(…)"

    __str__ = __repr__

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class ImageLookup(msgspec.Struct, frozen=True):
    """Result of a look-up: the digest that the registry serves for a reference, and the platforms in index order."""

    digest: str
    platforms: tuple[str, ...]


class _Token(msgspec.Struct):
    token: str = ""
    access_token: str = ""


def look_up(reference: Reference, allowed: AllowedHosts, credential: RegistryCredential | None = None) -> ImageLookup:
    """Read the platforms of an image from its registry. Raises: ImageUnreadable."""
    if not allowed.reads(reference.host):
        raise ImageUnreadable("RegistryNotAllowed", f"this server is not allowed to read from {reference.host}")
    repository = _Repository(reference, allowed, credential)
    try:
        content = repository.manifest(reference.digest or reference.tag)
        digest = reference.digest or f"sha256:{hashlib.sha256(content).hexdigest()}"
        check_digest(content, digest)
        return ImageLookup(digest, platforms_of(parse_document(content, "the manifest"), repository.read))
    except InputError as error:
        raise ImageUnreadable("ImageMalformed", f"{reference.host}: {error.message}") from None


class _Repository:
    """Calls to one repository with one credential, or anonymously."""

    def __init__(self, reference: Reference, allowed: AllowedHosts, credential: RegistryCredential | None) -> None:
        self._host = _HUB_API if reference.host == DOCKER_HUB else reference.host
        self._path = reference.path
        self._allowed = allowed
        self._credential = credential
        self._authorization = ""
        scheme = "http" if allowed.is_plain(reference.host) else "https"
        self._root = f"{scheme}://{self._host}/v2/{quote(reference.path)}"

    def manifest(self, name: str) -> bytes:
        """Return the manifest or index of a tag or digest."""
        answer = self._ask(f"{self._root}/manifests/{quote(name, safe=':')}", _ACCEPT)
        stated = answer.headers.get("docker-content-digest", "")
        if stated.startswith("sha256:"):
            check_digest(answer.body, stated)
        return answer.body

    def read(self, digest: str, is_manifest: bool) -> bytes:
        """Return a manifest or a configuration by its digest."""
        return self.manifest(digest) if is_manifest else self._ask(f"{self._root}/blobs/{digest}", {}).body

    def _ask(self, url: str, headers: dict[str, str]) -> OutboundResponse:
        answer = self._follow(url, headers)
        if answer.status == 401 and not self._authorization:
            self._authorization = self._authorized(answer.headers.get("www-authenticate", ""))
            answer = self._follow(url, headers)
        if answer.status != 200:
            self._refused(answer)
        return answer

    def _follow(self, url: str, headers: dict[str, str]) -> OutboundResponse:
        for _ in range(_MOST_REDIRECTS):
            own = urlsplit(url)[:2] == urlsplit(self._root)[:2]
            proof = {"Authorization": self._authorization} if own and self._authorization else {}
            answer = wire.get(url, {**headers, **proof}, self._allowed)
            if answer.status not in _REDIRECTS:
                return answer
            url = urljoin(url, answer.headers.get("location", ""))
        raise ImageUnreadable("RedirectRefused", f"{self._host} redirects more than {_MOST_REDIRECTS} times")

    def _authorized(self, challenge: str) -> str:
        """Return the Authorization header that grants read access to this repository."""
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic" and self._credential is not None:
            return self._credential.basic
        stated = dict(_CHALLENGE.findall(rest))
        if scheme.lower() != "bearer" or "realm" not in stated:
            raise ImageUnreadable("RegistryRefused", f"{self._host} requires credentials")
        query = {"scope": f"repository:{self._path}:pull"}
        if "service" in stated:
            query["service"] = stated["service"]
        joint = "&" if "?" in stated["realm"] else "?"
        proof = {} if self._credential is None else {"Authorization": self._credential.basic}
        answer = wire.get(f"{stated['realm']}{joint}{urlencode(query)}", proof, self._allowed, most=_MOST_TOKEN_BYTES)
        if answer.status != 200:
            self._refused(answer)
        try:
            token = msgspec.json.decode(answer.body, type=_Token)
        except msgspec.DecodeError:
            raise ImageUnreadable("RegistryRefused", f"{self._host} returned an invalid token response") from None
        found = token.token or token.access_token
        if not found or not found.isascii() or not found.isprintable():
            raise ImageUnreadable("RegistryRefused", f"{self._host} returned an invalid token response")
        return f"Bearer {found}"

    def _refused(self, answer: OutboundResponse) -> NoReturn:
        host, status = self._host, answer.status
        if status in (401, 403):
            raise ImageUnreadable("RegistryRefused", f"{host} denied access to this image (status {status})")
        if status == 404:
            raise ImageUnreadable("ImageNotFound", f"{host} has no such image or denies access to it")
        wait = answer.headers.get("retry-after", "")
        seconds = min(float(wait), _LONGEST_WAIT_SECONDS) if wait.isdecimal() else 0.0
        code = "RegistryBusy" if status in (429, 503) else "RegistryFailed"
        raise ImageUnreadable(code, f"{host} responded with status {status}", seconds)
