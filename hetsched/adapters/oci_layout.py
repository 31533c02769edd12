"""The platforms that an OCI image layout offers, read from its directory or tar archive.

Rule: index.json lists manifests and nested indexes; a manifest without a platform is asked for its configuration.
Nothing is unpacked: only the small JSON documents are read, each checked against its digest.
Source: opencontainers/image-spec image-layout.md, image-index.md.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from hetsched.contracts.errors import InputError

_MAX_DOCUMENT_BYTES = 4 << 20
_MAX_DEPTH = 4
_DIGEST = re.compile(r"(sha256|sha512):([0-9a-f]{64,128})")

Read = Callable[[str], bytes]
Document = dict[str, Any]


def read_platforms(path: Path) -> tuple[str, ...]:
    """Return the platforms (`linux/arm64/v8`) in the order of the index. Raises: InputError (OciMalformed)."""
    if path.is_dir():
        return _platforms(lambda name: _read_file(path / name))
    try:
        with tarfile.open(path, mode="r:*") as archive:
            return _platforms(lambda name: _read_member(archive, name))
    except (tarfile.TarError, EOFError) as error:
        raise _malformed(f"the tar archive cannot be read: {error}") from error


def _platforms(read: Read) -> tuple[str, ...]:
    if "imageLayoutVersion" not in _document(read("oci-layout"), "oci-layout"):
        raise _malformed("oci-layout names no imageLayoutVersion")
    return tuple(dict.fromkeys(_of_index(_document(read("index.json"), "index.json"), read, 0)))


def _of_index(index: Document, read: Read, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise _malformed("the indexes are nested too deeply")
    descriptors = index.get("manifests")
    if not isinstance(descriptors, list):
        raise _malformed("an index lists no manifests")
    for descriptor in descriptors:
        platform = _field(descriptor, "platform")
        if platform:
            yield _written(platform)
            continue
        document = _blob(descriptor, read)
        if "manifests" in document:
            yield from _of_index(document, read, depth + 1)
        else:
            yield _written(_blob(document.get("config"), read))


def _written(platform: Any) -> str:
    parts = [_field(platform, "os"), _field(platform, "architecture"), _field(platform, "variant")]
    if not all(isinstance(part, str) and part for part in parts[:2]):
        raise _malformed("a platform lacks os or architecture")
    return "/".join(str(part) for part in parts if part)


def _blob(descriptor: Any, read: Read) -> Document:
    digest = _field(descriptor, "digest")
    found = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if found is None:
        raise _malformed(f"{digest!r} is no digest")
    content = read(f"blobs/{found[1]}/{found[2]}")
    if hashlib.new(found[1], content).hexdigest() != found[2]:
        raise _malformed(f"a blob does not have its digest {digest}")
    return _document(content, str(digest))


def _field(document: Any, name: str) -> Any:
    return document.get(name) if isinstance(document, dict) else None


def _document(content: bytes, name: str) -> Document:
    try:
        decoded = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _malformed(f"{name} is no JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise _malformed(f"{name} is no JSON object")
    return cast(Document, decoded)


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return _bounded(file.read(_MAX_DOCUMENT_BYTES + 1), path.name)
    except OSError as error:
        raise _malformed(f"{path.name} cannot be read: {error.strerror}") from error


def _read_member(archive: tarfile.TarFile, name: str) -> bytes:
    for member in (name, f"./{name}"):
        try:
            file = archive.extractfile(member)
        except KeyError:
            continue
        if file is not None:
            return _bounded(file.read(_MAX_DOCUMENT_BYTES + 1), name)
    raise _malformed(f"{name} is not in the archive")


def _bounded(content: bytes, name: str) -> bytes:
    if len(content) > _MAX_DOCUMENT_BYTES:
        raise _malformed(f"{name} is larger than {_MAX_DOCUMENT_BYTES} bytes")
    return content


def _malformed(message: str) -> InputError:
    return InputError("OciMalformed", message, hint="write the image with an OCI-layout exporter")
