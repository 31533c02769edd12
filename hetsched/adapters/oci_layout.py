"""The platforms that an OCI image layout offers, read from its directory or tar archive.

Rule: index.json is the index, `blobs/` holds what it names. Nothing is unpacked: only the small JSON documents are
read, each checked against its digest.
Source: opencontainers/image-spec image-layout.md.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

from .images.documents import MAX_DOCUMENT_BYTES, malformed, parse_document, platforms_of, split_digest

Read = Callable[[str], bytes]


def read_platforms(path: Path) -> tuple[str, ...]:
    """Return the platforms (`linux/arm64/v8`) in the order of the index. Raises: InputError (OciMalformed)."""
    if path.is_dir():
        return _platforms(lambda name: _read_file(path / name))
    try:
        with tarfile.open(path, mode="r:*") as archive:
            return _platforms(lambda name: _read_member(archive, name))
    except (tarfile.TarError, EOFError) as error:
        raise malformed(f"the tar archive cannot be read: {error}") from error


def _platforms(read: Read) -> tuple[str, ...]:
    if "imageLayoutVersion" not in parse_document(read("oci-layout"), "oci-layout"):
        raise malformed("oci-layout names no imageLayoutVersion")
    index = parse_document(read("index.json"), "index.json")
    if "manifests" not in index:
        raise malformed("an index lists no manifests")
    return platforms_of(index, lambda digest, _: read("/".join(("blobs", *split_digest(digest)))))


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return _bounded(file.read(MAX_DOCUMENT_BYTES + 1), path.name)
    except OSError as error:
        raise malformed(f"{path.name} cannot be read: {error.strerror}") from error


def _read_member(archive: tarfile.TarFile, name: str) -> bytes:
    for member in (name, f"./{name}"):
        try:
            file = archive.extractfile(member)
        except KeyError:
            continue
        if file is not None:
            return _bounded(file.read(MAX_DOCUMENT_BYTES + 1), name)
    raise malformed(f"{name} is not in the archive")


def _bounded(content: bytes, name: str) -> bytes:
    if len(content) > MAX_DOCUMENT_BYTES:
        raise malformed(f"{name} is larger than {MAX_DOCUMENT_BYTES} bytes")
    return content
