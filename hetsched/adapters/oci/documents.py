"""Platforms of an image index or manifest, independent of where its documents are stored.

An index lists manifests and nested indexes; if a manifest has no platform, its configuration is read. Index entries
other than images (attestations, `unknown/unknown`) are also listed; the consumer drops them. Every document is checked
against the digest of its descriptor before it is parsed.
Source: opencontainers/image-spec image-index.md, manifest.md, config.md, media-types.md; distribution's
"Image Manifest Version 2, Schema 2".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message

MAX_DOCUMENT_BYTES = 4 << 20
# Maximum number of documents of one image; typical images have a dozen platforms.
MAX_DOCUMENTS = 64
_MAX_DEPTH = 4
_DIGEST = re.compile(r"(sha256):([0-9a-f]{64})|(sha512):([0-9a-f]{128})")
_ODD = re.compile(r"[^A-Za-z0-9_.+%-]")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")

INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
MEDIA_TYPES = (*INDEXES, *MANIFESTS)

Document = dict[str, Any]
# Returns the document with this digest: a manifest or index if the flag is true, otherwise a configuration.
Read = Callable[[str, bool], bytes]


def platforms_of(document: Document, read: Read) -> tuple[str, ...]:
    """Return the platforms (`linux/arm64/v8`) of an index or manifest, in the order of the index.

    Raises: InputError (OciMalformed), and the errors of `read`.
    """
    budget = iter(range(MAX_DOCUMENTS))

    def counted(digest: str, is_manifest: bool) -> bytes:
        if next(budget, None) is None:
            raise malformed(Message("the image consists of more than {n} documents", n=MAX_DOCUMENTS))
        return read(digest, is_manifest)

    return tuple(dict.fromkeys(_of(document, counted, 0)))


def parse_document(content: bytes, name: str) -> Document:
    """Parse a JSON object; errors refer to it as `name`. Raises: InputError (OciMalformed)."""
    try:
        decoded = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise malformed(Message("{name} is not JSON: {text}", name=name, text=str(error))) from error
    if not isinstance(decoded, dict):
        raise malformed(Message("{name} is not a JSON object", name=name))
    return cast(Document, decoded)


def split_digest(digest: Any) -> tuple[str, str]:
    """Return the algorithm and the hexadecimal digits of a digest. Raises: InputError (OciMalformed)."""
    found = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if found is None:
        raise malformed(Message("{text} is not a valid digest", text=repr(str(digest)[:80])))
    return found[1] or found[3], found[2] or found[4]


def check_digest(content: bytes, digest: str) -> None:
    """Check content against its digest. Raises: InputError (OciMalformed)."""
    algorithm, expected = split_digest(digest)
    if hashlib.new(algorithm, content).hexdigest() != expected:
        raise malformed(Message("a document does not match its digest {digest}", digest=digest))


def malformed(message: str) -> InputError:
    return InputError("OciMalformed", message, hint="write the image with an OCI-layout exporter")


def _of(document: Document, read: Read, depth: int) -> Iterator[str]:
    if "manifests" not in document:
        if "config" not in document:
            raise malformed(
                "a manifest has no configuration; if the manifest has schema version 1, push the image again"
            )
        yield _written(_fetched(document["config"], read, is_manifest=False))
        return
    if depth > _MAX_DEPTH:
        raise malformed("the indexes are nested too deeply")
    descriptors = document["manifests"]
    if not isinstance(descriptors, list):
        raise malformed("an index lists no manifests")
    for descriptor in descriptors:
        platform = _field(descriptor, "platform")
        if platform:
            yield _written(platform)
        else:
            yield from _of(_fetched(descriptor, read, is_manifest=True), read, depth + 1)


def _fetched(descriptor: Any, read: Read, *, is_manifest: bool) -> Document:
    digest = _field(descriptor, "digest")
    split_digest(digest)
    content = read(digest, is_manifest)
    check_digest(content, digest)
    return parse_document(content, digest)


def _written(platform: Any) -> str:
    parts = [_field(platform, "os"), _field(platform, "architecture"), _field(platform, "variant")]
    if not all(isinstance(part, str) and part for part in parts[:2]):
        raise malformed("a platform lacks os or architecture")
    if not all(isinstance(part, str) and _PART.fullmatch(part) for part in parts if part):
        raise malformed("a platform contains invalid characters")
    if needed := _field(platform, "os.features"):
        # The OS features of nodes are unknown. The features are therefore added to the name of the OS, so the entry is
        # listed but matches no node.
        features = "+".join(str(feature)[:40] for feature in needed) if isinstance(needed, list) else "features"
        parts[0] = f"{parts[0]}({_ODD.sub('-', features)})"
    return "/".join(str(part) for part in parts if part)


def _field(document: Any, name: str) -> Any:
    return document.get(name) if isinstance(document, dict) else None
