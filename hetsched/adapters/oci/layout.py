"""The images of an OCI image layout or of a `docker save` archive, read from a directory or a tar file.

Rule: index.json is the index, `blobs/` holds what it names; where there is no layout, manifest.json lists the images as
`docker save` wrote them before it wrote layouts. Nothing is unpacked: small JSON documents are read, each checked
against the digest that names it, and layers are looked through where their programs are asked for.
Source: opencontainers/image-spec image-layout.md; moby image/spec "Combined Image JSON + Filesystem Changeset".
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from .documents import (
    MAX_DOCUMENT_BYTES,
    MAX_DOCUMENTS,
    check_digest,
    malformed,
    parse_document,
    platforms_of,
    split_digest,
)
from .layers import CarefulTarInfo, LayerFiles


class Store(Protocol):
    """Where the files of a layout are."""

    def open(self, name: str) -> IO[bytes]: ...

    def has(self, name: str) -> bool: ...


class Image(NamedTuple):
    """One platform's image: its configuration, and its layers from the lowest up."""

    platform: str
    configuration: dict[str, Any]
    layers: tuple[str, ...]


class Layout:
    """One layout or archive."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_oci = store.has("oci-layout") or not store.has("manifest.json")

    def platforms(self) -> tuple[str, ...]:
        """Return the platforms (`linux/arm64/v8`) in the order of the index. Raises: InputError (OciMalformed)."""
        if not self.is_oci:
            return tuple(dict.fromkeys(image.platform for image in self.images()))
        return platforms_of(self._index(), lambda digest, _: self._blob(digest))

    def images(self) -> Iterator[Image]:
        """Yield every image that is here; a layout may list others. Raises: InputError (OciMalformed)."""
        yield from self._indexed(self._index(), [MAX_DOCUMENTS]) if self.is_oci else self._saved()

    def files(self, image: Image) -> LayerFiles:
        """Look through an image's layers. Raises: InputError (OciMalformed)."""
        return LayerFiles([lambda name=name: self._store.open(name) for name in image.layers])  # type: ignore[misc]

    def _index(self) -> dict[str, Any]:
        if "imageLayoutVersion" not in parse_document(self._read("oci-layout"), "oci-layout"):
            raise malformed("oci-layout names no imageLayoutVersion")
        index = parse_document(self._read("index.json"), "index.json")
        if "manifests" not in index:
            raise malformed("an index lists no manifests")
        return index

    def _indexed(self, index: dict[str, Any], left: list[int]) -> Iterator[Image]:
        for descriptor in index["manifests"] if isinstance(index["manifests"], list) else ():
            left[0] -= 1
            digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
            if left[0] < 0 or digest is None or not self._store.has(_blob_name(digest)):
                continue
            document = self._document(digest)
            if "manifests" in document:
                yield from self._indexed(document, left)
                continue
            image = self._image(document)
            if image is not None:
                yield image

    def _image(self, manifest: dict[str, Any]) -> Image | None:
        configuration, layers = manifest.get("config"), manifest.get("layers")
        if not isinstance(configuration, dict) or not isinstance(layers, list):
            return None
        document = self._document(configuration.get("digest"))
        if not document.get("os"):
            return None  # an attestation
        names = [_blob_name(layer.get("digest")) for layer in layers if isinstance(layer, dict)]
        return Image(_platform(document), document, tuple(names))

    def _saved(self) -> Iterator[Image]:
        listed = parse_document(b'{"images":' + self._read("manifest.json") + b"}", "manifest.json")["images"]
        for entry in listed[:MAX_DOCUMENTS] if isinstance(listed, list) else ():
            name, layers = (entry.get("Config"), entry.get("Layers")) if isinstance(entry, dict) else (None, None)
            named = isinstance(layers, list) and all(isinstance(one, str) for one in layers)
            if not isinstance(name, str) or not isinstance(layers, list) or not named:
                raise malformed("manifest.json lists an image without configuration or layers")
            document = parse_document(self._read(name), "a configuration")
            yield Image(_platform(document), document, tuple(layers))

    def _document(self, digest: Any) -> dict[str, Any]:
        content = self._blob(digest)
        check_digest(content, digest)
        return parse_document(content, digest)

    def _blob(self, digest: Any) -> bytes:
        return self._read(_blob_name(digest))

    def _read(self, name: str) -> bytes:
        with self._store.open(name) as file:
            content = file.read(MAX_DOCUMENT_BYTES + 1)
        if len(content) > MAX_DOCUMENT_BYTES:
            raise malformed(f"{name} is larger than {MAX_DOCUMENT_BYTES} bytes")
        return content


@contextmanager
def opened(place: Path | IO[bytes]) -> Iterator[Layout]:
    """Open a directory, a tar file or one that is already open. Raises: InputError (OciMalformed)."""
    if isinstance(place, Path) and place.is_dir():
        yield Layout(_Folder(place))
        return
    try:
        with ExitStack() as stack:
            file = stack.enter_context(place.open("rb")) if isinstance(place, Path) else place
            yield Layout(_Archive(stack.enter_context(tarfile.open(fileobj=file, mode="r:*", tarinfo=CarefulTarInfo))))
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise malformed(f"the tar archive cannot be read: {error}") from error


class _Folder:
    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def open(self, name: str) -> IO[bytes]:
        path = (self._root / name).resolve()
        if not path.is_relative_to(self._root) or (path.exists() and not path.is_file()):
            raise malformed(f"{name[:200]} is no file of the layout")
        try:
            return path.open("rb")
        except OSError as error:
            raise malformed(f"{path.name} cannot be read: {error.strerror}") from error

    def has(self, name: str) -> bool:
        return (self._root / name).is_file()


class _Archive:
    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive

    def open(self, name: str) -> IO[bytes]:
        for member in (name, f"./{name}"):
            try:
                file = self._archive.extractfile(member)
            except KeyError:
                continue
            if file is not None:
                return file
        raise malformed(f"{name[:200]} is not in the archive")

    def has(self, name: str) -> bool:
        names = self._archive.getnames()
        return name in names or f"./{name}" in names


def _blob_name(digest: Any) -> str:
    return "/".join(("blobs", *split_digest(digest)))


def _platform(document: dict[str, Any]) -> str:
    parts = (document.get("os"), document.get("architecture"), document.get("variant"))
    return "/".join(str(part) for part in parts if part)
