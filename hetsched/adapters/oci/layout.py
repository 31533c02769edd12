"""Images of an OCI image layout or of a `docker save` archive, from a directory or a tar file.

index.json is the index, and `blobs/` contains the objects that it names. Without a layout, manifest.json lists the
images, as in archives of older versions of `docker save`. Nothing is unpacked to disk: small JSON documents are read
and checked against their digest, and layers are scanned only when their programs are requested. An archive is read once
to index its members, without keeping them; a compressed archive is decompressed again for each layer. One
`InspectionBudget` limits the total cost.
Source: opencontainers/image-spec image-layout.md; moby image/spec "Combined Image JSON + Filesystem Changeset".
"""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from hetsched.contracts.message import Message

from .archive_reader import MAX_PATH, CarefulTarInfo, InspectionBudget, Readable, Slice, Unpacked, members, readable
from .documents import MAX_DOCUMENTS, check_digest, malformed, parse_document, platforms_of, split_digest
from .layers import LayerFiles

MAX_DOCUMENT_BYTES = 1 << 20  # limit, because a nested document needs many times its size in memory
_MAX_LINKS = 8
_KEPT_BYTES = 8 << 20
_SMALL_BYTES = 256 << 10


class Store(Protocol):
    """Storage of a layout's files."""

    def open(self, name: str) -> AbstractContextManager[Readable]: ...

    def has(self, name: str) -> bool: ...


class Image(NamedTuple):
    """The image for one platform: its configuration, and its layers from the lowest up."""

    platform: str
    configuration: dict[str, Any]
    layers: tuple[str, ...]


class ImageLayout:
    """An OCI image layout or a `docker save` archive."""

    def __init__(self, store: Store, effort: InspectionBudget) -> None:
        self._store = store
        self._effort = effort
        self.is_oci = store.has("oci-layout") or not store.has("manifest.json")

    def platforms(self) -> tuple[str, ...]:
        """Return the platforms (`linux/arm64/v8`) in the order of the index. Raises: InputError (OciMalformed)."""
        if not self.is_oci:
            return tuple(dict.fromkeys(image.platform for image in self.images()))
        return platforms_of(self._index(), lambda digest, _: self._blob(digest))

    def images(self) -> Iterator[Image]:
        """Yield the images that are stored; the index may list more. Raises: InputError (OciMalformed)."""
        yield from self._indexed(self._index(), [MAX_DOCUMENTS]) if self.is_oci else self._saved()

    def files(self, image: Image) -> LayerFiles:
        """Index the files of an image's layers. Raises: InputError (OciMalformed)."""
        return LayerFiles([lambda name=name: self._store.open(name) for name in image.layers], self._effort)  # type: ignore[misc]

    def _index(self) -> dict[str, Any]:
        if "imageLayoutVersion" not in parse_document(self._read("oci-layout"), "oci-layout"):
            raise malformed("oci-layout does not contain imageLayoutVersion")
        index = parse_document(self._read("index.json"), "index.json")
        if "manifests" not in index:
            raise malformed("an index lists no manifests")
        return index

    def _indexed(self, index: dict[str, Any], remaining: list[int]) -> Iterator[Image]:
        for descriptor in index["manifests"] if isinstance(index["manifests"], list) else ():
            remaining[0] -= 1
            digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
            if remaining[0] < 0 or digest is None or not self._store.has(_blob_name(digest)):
                continue
            document = self._document(digest)
            if "manifests" in document:
                yield from self._indexed(document, remaining)
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
            return None  # an attestation has no operating system
        names = [_blob_name(layer.get("digest")) for layer in layers if isinstance(layer, dict)]
        return Image(_platform(document), document, tuple(names))

    def _saved(self) -> Iterator[Image]:
        listed = parse_document(b'{"images":' + self._read("manifest.json") + b"}", "manifest.json")["images"]
        for entry in listed[:MAX_DOCUMENTS] if isinstance(listed, list) else ():
            name, layers = (entry.get("Config"), entry.get("Layers")) if isinstance(entry, dict) else (None, None)
            named = isinstance(layers, list) and all(isinstance(layer, str) for layer in layers)
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
        self._effort.check()
        content = b""
        with self._store.open(name) as file:
            while piece := file.read(MAX_DOCUMENT_BYTES):
                content += piece
                if len(content) > MAX_DOCUMENT_BYTES:
                    raise malformed(Message("{name} is larger than {n} bytes", name=name, n=MAX_DOCUMENT_BYTES))
        return content


@contextmanager
def opened(place: Path | IO[bytes]) -> Iterator[ImageLayout]:
    """Open a directory, a tar file or an open file. Raises: InputError (OciMalformed, OciTooLarge)."""
    effort = InspectionBudget()
    if isinstance(place, Path) and place.is_dir():
        yield ImageLayout(_Folder(place), effort)
        return
    with readable("the tar archive cannot be read: {text}"), ExitStack() as stack:
        file = stack.enter_context(place.open("rb")) if isinstance(place, Path) else place
        yield ImageLayout(_Archive(file, effort), effort)


class _Folder:
    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def open(self, name: str) -> IO[bytes]:
        path = (self._root / name).resolve()
        if not path.is_relative_to(self._root) or (path.exists() and not path.is_file()):
            raise malformed(Message("the image layout contains no file {name}", name=name[:200]))
        try:
            return path.open("rb")
        except OSError as error:
            why = error.strerror or str(error)
            raise malformed(Message("{name} cannot be read: {text}", name=path.name, text=why)) from error

    def has(self, name: str) -> bool:
        return (self._root / name).is_file()


class _ArchiveEntry(NamedTuple):
    """A plain file in an archive: its offset in the decompressed bytes, and its size."""

    start: int
    size: int


class _Archive:
    """A tar file, compressed or not, with an index of its plain files and links.

    Small files of a compressed archive are kept in memory, because documents may follow the layers in the archive.
    """

    def __init__(self, file: IO[bytes], effort: InspectionBudget) -> None:
        self._file = file
        self._effort = effort
        self._packed = Unpacked(Slice(file), effort).is_packed
        self._parts: dict[str, _ArchiveEntry | str] = {}
        self._kept: dict[str, bytes] = {}
        remaining = _KEPT_BYTES
        for archive, member in members(Slice(file), effort) if self._packed else self._plain_members():
            name = posixpath.normpath(member.name)
            if len(name) > MAX_PATH or len(member.linkname) > MAX_PATH:
                continue
            if member.issym() or member.islnk():
                effort.take_index(name, member.linkname)
                folder = posixpath.dirname(name) if member.issym() else ""
                self._parts[name] = posixpath.normpath(posixpath.join(folder, member.linkname))
            elif member.isreg():
                effort.take_index(name)
                self._parts[name] = _ArchiveEntry(member.offset_data, member.size)
                self._kept.pop(name, None)
                if self._packed and member.size <= min(remaining, _SMALL_BYTES):
                    remaining -= member.size
                    self._kept[name] = archive.extractfile(member).read()  # type: ignore[union-attr]

    def _plain_members(self) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
        self._file.seek(0)
        with tarfile.open(fileobj=self._file, mode="r:", tarinfo=CarefulTarInfo) as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]
                self._effort.take_member()
                yield archive, member

    @contextmanager
    def open(self, name: str) -> Iterator[Readable]:
        """Open a plain file, following links."""
        found = self._found(name)
        if found is None:
            raise malformed(Message("{name} is not in the archive", name=name[:200]))
        at, part = found
        if at in self._kept:
            yield io.BytesIO(self._kept[at])
        elif self._packed:
            yield _ContentReader(Unpacked(Slice(self._file), self._effort), part)
        else:
            yield Slice(self._file, part.start, part.size)

    def has(self, name: str) -> bool:
        return self._found(name) is not None

    def _found(self, name: str) -> tuple[str, _ArchiveEntry] | None:
        name = posixpath.normpath(name)
        for _ in range(_MAX_LINKS):
            part = self._parts.get(name)
            if not isinstance(part, str):
                return None if part is None else (name, part)
            name = part
        return None


class _ContentReader:
    """A part of the decompressed content of an archive."""

    def __init__(self, unpacked: Unpacked, part: _ArchiveEntry) -> None:
        self._unpacked = unpacked
        self._skip, self._left = part

    def read(self, size: int) -> bytes:
        while self._skip:
            skipped = self._unpacked.read(min(self._skip, _SMALL_BYTES))
            if not skipped:
                return b""
            self._skip -= len(skipped)
        found = self._unpacked.read(min(size, self._left)) if self._left else b""
        self._left -= len(found)
        return found


def _blob_name(digest: Any) -> str:
    return "/".join(("blobs", *split_digest(digest)))


def _platform(document: dict[str, Any]) -> str:
    parts = (document.get("os"), document.get("architecture"), document.get("variant"))
    return "/".join(str(part) for part in parts if part)
