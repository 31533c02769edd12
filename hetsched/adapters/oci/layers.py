"""Files of an image, located in its layers without unpacking them.

A program may be reached through links, and a later layer may replace or delete files of an earlier one. One pass over
all layers records the final member of each path (a `.wh.` name deletes, `.wh..wh..opq` empties its folder); a path is
then resolved through links and read from its layer. Members, their names and their unpacked size are bounded.
Source: opencontainers/image-spec layer.md.
"""

from __future__ import annotations

import mmap
import posixpath
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from .archive_reader import MAX_PATH, InspectionBudget, Readable, members, readable
from .documents import malformed

MAX_LAYERS = 256
MAX_FILE_BYTES = 128 << 20
_MAX_LINKS = 40
_PIECE = 1 << 20
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
Open = Callable[[], AbstractContextManager[Readable]]


class _Member(NamedTuple):
    """Location of a path's content: a layer and the member's name (None: the path without its first slash)."""

    layer: int
    name: str | None = None
    link: str | None = None
    hard: bool = False


class LayerFiles:
    """The files of a stack of layers.

    The index lives as long as the object, so its use of the inspection's budget is returned after indexing.
    """

    def __init__(self, layers: Sequence[Open], effort: InspectionBudget) -> None:
        if len(layers) > MAX_LAYERS:
            raise malformed(f"it has more than {MAX_LAYERS} layers")
        self._layers = layers
        self._effort = effort
        self._members: dict[str, _Member] = {}
        self._repeated: dict[str, int] = {}  # number in its layer, of a path that its layer has several times
        self._plain = [_Member(at) for at in range(len(layers))]
        members_left, index_left = effort.members, effort.index_bytes
        try:
            for at, layer in enumerate(layers):
                with _opened(layer) as file:
                    for number, (_, member) in enumerate(members(file, effort)):
                        self._note(at, number, member)
        finally:
            effort.members, effort.index_bytes = members_left, index_left

    def find(self, path: str) -> str | None:
        """Return the path of the file that a path resolves to through links; None if there is no such file."""
        if len(path) > MAX_PATH:
            return None
        ahead = [part for part in path.split("/") if part not in ("", ".")]
        at, links = "/", 0
        while ahead:
            part = ahead.pop(0)
            at = posixpath.dirname(at) if part == ".." else posixpath.join(at, part)
            member = self._members.get(at)
            if member is None or member.link is None:
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            target = member.link if not member.hard else f"/{member.link}"
            ahead = [part for part in target.split("/") if part not in ("", ".")] + ahead
            at = "/" if target.startswith("/") else posixpath.dirname(at)
        found = self._members.get(at)
        return at if found is not None and found.link is None else None

    def read(self, path: str) -> memoryview | None:
        """Return a file's content, None if it is no plain file. Raises: InputError (OciMalformed, OciTooLarge)."""
        found = self.find(path)
        if found is None:
            return None
        wanted = self._members[found]
        name = found[1:] if wanted.name is None else wanted.name
        number = self._repeated.get(found)
        with _opened(self._layers[wanted.layer]) as file:
            for at, (archive, member) in enumerate(members(file, self._effort)):
                if member.name == name and number in (None, at):
                    return _content(archive, member)
        return None

    def _note(self, layer: int, number: int, member: tarfile.TarInfo) -> None:
        if len(member.name) > MAX_PATH or len(member.linkname) > MAX_PATH:
            return
        path = posixpath.normpath("/" + member.name)
        folder, name = posixpath.split(path)
        stored = None if member.name == path[1:] else member.name
        known = self._members.get(path)
        if path in self._repeated or (known is not None and known.layer == layer):
            if path not in self._repeated:
                self._effort.take_index()
            self._repeated[path] = number
        if name == _OPAQUE:
            self._forget(folder, layer, itself=False)
        elif name.startswith(_WHITEOUT):
            self._forget(posixpath.join(folder, name.removeprefix(_WHITEOUT)), layer, itself=True)
        elif member.issym() or member.islnk():
            self._effort.take_index(path, stored, member.linkname)
            self._members[path] = _Member(layer, stored, member.linkname, hard=member.islnk())
        elif member.isreg():
            self._effort.take_index(path, stored)
            self._members[path] = self._plain[layer] if stored is None else _Member(layer, stored)
        else:
            self._members.pop(path, None)

    def _forget(self, path: str, layer: int, *, itself: bool) -> None:
        below = path.rstrip("/") + "/"
        gone = [known for known, member in self._members.items() if known.startswith(below) and member.layer < layer]
        for known in gone:
            del self._members[known]
        if itself and (own := self._members.get(path)) and own.layer < layer:
            del self._members[path]


@contextmanager
def _opened(layer: Open) -> Iterator[Readable]:
    with readable("a layer cannot be read, or is packed in a way not known here"), layer() as file:
        yield file


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> memoryview | None:
    """Return a file's content, mapped from an unnamed temporary file, because a program may be too large for memory."""
    file = archive.extractfile(member) if member.isreg() else None
    if file is None:
        return None
    if member.size > MAX_FILE_BYTES:
        raise malformed(f"{member.name[:200]} is larger than {MAX_FILE_BYTES >> 20} MiB")
    if not member.size:
        return memoryview(b"")
    with tempfile.TemporaryFile(prefix="hetsched-inspect-") as copy:
        while piece := file.read(_PIECE):
            copy.write(piece)
        copy.flush()
        return memoryview(mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ))
