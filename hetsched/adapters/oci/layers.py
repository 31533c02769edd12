"""Files of an image, located in its layers without unpacking them.

A program may be reached through links, and a later layer may replace or delete files of an earlier one. One pass over
all layers records the final member of each path; a `.wh.` name deletes a path, and `.wh..wh..opq` empties its folder. A
path is then resolved through symbolic links and read from its layer. A hard link refers to the content that its target
has when the pass reaches the link; later changes of the target have no effect. This matches containerd, where the link
is another name of the target's inode. The number of members, the length of their names and their unpacked size are
limited.
Source: opencontainers/image-spec layer.md; containerd pkg/archive/tar.go.
"""

from __future__ import annotations

import mmap
import posixpath
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from hetsched.contracts.message import Message

from .archive_reader import MAX_PATH, InspectionBudget, Readable, members, readable
from .documents import malformed

MAX_LAYERS = 256
MAX_FILE_BYTES = 128 << 20
_MAX_LINKS = 40
_PIECE = 1 << 20
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
Open = Callable[[], AbstractContextManager[Readable]]


class _Content(NamedTuple):
    """Location of a file's content: the member `name` of a layer.

    If several members have this name, `number` is the position of the right member in the layer; otherwise it is None.
    """

    layer: int
    name: str
    number: int | None


class _Member(NamedTuple):
    """The effective member of a path: the last layer that contains it, and its name in that layer.

    `name` is None if it equals the path without its leading slash. `link` is the target of a symbolic link, and
    `content` the location of a hard link's content.
    """

    layer: int
    name: str | None = None
    link: str | None = None
    content: _Content | None = None


class LayerFiles:
    """The files of a stack of layers.

    While the layers are indexed, their members and names count towards the inspection's budgets of members and index
    bytes. Both budgets are restored afterwards.
    """

    def __init__(self, layers: Sequence[Open], effort: InspectionBudget) -> None:
        if len(layers) > MAX_LAYERS:
            raise malformed(Message("the image has more than {n} layers", n=MAX_LAYERS))
        self._layers = layers
        self._effort = effort
        self._members: dict[str, _Member] = {}
        # member number in the layer, for a path that occurs in the layer several times
        self._repeated: dict[str, int] = {}
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
        """Return the path of the file that a path resolves to through links, or None if there is no such file."""
        at = self._resolved(path)
        found = None if at is None else self._members.get(at)
        return at if found is not None and found.link is None else None

    def _resolved(self, path: str, *, last: bool = True) -> str | None:
        """Resolve the symbolic links in a path; return None for too many links or a path that is too long.

        If `last` is true, a link in the last component is resolved too.

        Raises: InputError (OciTooLarge).
        """
        if len(path) > MAX_PATH:
            return None
        # The remaining path can be long, because each link may add `MAX_PATH` characters. Its parts are in reverse
        # order, so that removing the next part is cheap.
        ahead, at, links = _reversed_parts(path), "/", 0
        while ahead:
            self._effort.check()
            part = ahead.pop()
            at = posixpath.dirname(at) if part == ".." else posixpath.join(at, part)
            if len(at) > MAX_PATH:
                return None
            member = self._members.get(at)
            if member is None or member.link is None or not (ahead or last):
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            ahead += _reversed_parts(member.link)
            at = "/" if member.link.startswith("/") else posixpath.dirname(at)
        return at

    def read(self, path: str) -> memoryview | None:
        """Return the content of a plain file, else None. Raises: InputError (OciMalformed, OciTooLarge)."""
        found = self.find(path)
        if found is None:
            return None
        wanted = self._content_of(found)
        with _opened(self._layers[wanted.layer]) as file:
            for at, (archive, member) in enumerate(members(file, self._effort)):
                if member.name == wanted.name and wanted.number in (None, at):
                    return _content(archive, member)
        return None

    def _content_of(self, path: str) -> _Content:
        """Return the location of the content of an indexed file."""
        member = self._members[path]
        name = path[1:] if member.name is None else member.name
        return member.content or _Content(member.layer, name, self._repeated.get(path))

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
        elif member.issym():
            self._effort.take_index(path, stored, member.linkname)
            self._members[path] = _Member(layer, stored, member.linkname)
        elif member.islnk() and (linked := self._linked(layer, member.linkname)) is not None:
            self._effort.take_index(path, linked.link, linked.content and linked.content.name)
            self._members[path] = linked
        elif member.isreg():
            self._effort.take_index(path, stored)
            self._members[path] = self._plain[layer] if stored is None else _Member(layer, stored)
        else:
            self._members.pop(path, None)

    def _linked(self, layer: int, target: str) -> _Member | None:
        """Return the member to record for a hard link, or None if the target is not among the files read so far."""
        at = self._resolved(target, last=False)
        found = None if at is None else self._members.get(at)
        if at is None or found is None:
            return None
        return _Member(layer, link=found.link, content=None if found.link is not None else self._content_of(at))

    def _forget(self, path: str, layer: int, *, itself: bool) -> None:
        below = path.rstrip("/") + "/"
        removed = [known for known, member in self._members.items() if known.startswith(below) and member.layer < layer]
        for known in removed:
            del self._members[known]
        if itself and (own := self._members.get(path)) and own.layer < layer:
            del self._members[path]


def _reversed_parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


@contextmanager
def _opened(layer: Open) -> Iterator[Readable]:
    with readable("a layer cannot be read, or its compression is not supported: {text}"), layer() as file:
        yield file


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> memoryview | None:
    """Return a file's content, mapped from an unnamed temporary file, because a program may be too large for memory."""
    file = archive.extractfile(member) if member.isreg() else None
    if file is None:
        return None
    if member.size > MAX_FILE_BYTES:
        raise malformed(Message("{name} is larger than {n} MiB", name=member.name[:200], n=MAX_FILE_BYTES >> 20))
    if not member.size:
        return memoryview(b"")
    with tempfile.TemporaryFile(prefix="hetsched-inspect-") as copy:
        while piece := file.read(_PIECE):
            copy.write(piece)
        copy.flush()
        return memoryview(mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ))
