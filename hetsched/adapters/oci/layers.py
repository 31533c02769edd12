"""Files of an image, found in its layers without unpacking them.

Problem: a program may be hidden behind links, and a later layer may replace or delete what an earlier one holds.
Rule: one pass over all layers notes which member each path ends up as (a `.wh.` name deletes, `.wh..wh..opq` empties
its folder); a path is then followed through links and read from its layer. Members, their names and what they unpack to
are bounded.
Source: opencontainers/image-spec layer.md.
"""

from __future__ import annotations

import posixpath
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, NamedTuple

from .documents import malformed

MAX_LAYERS = 256
MAX_MEMBERS = 200_000
MAX_UNPACKED_BYTES = 2 << 30
MAX_FILE_BYTES = 256 << 20
_MAX_LINKS = 40
_MAX_HEADER_BYTES = 1 << 20
_LONG_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
                 tarfile.GNUTYPE_LONGLINK)  # fmt: skip
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
Open = Callable[[], IO[bytes]]


class CarefulTarInfo(tarfile.TarInfo):
    """A member whose long name or attributes are read up to a limit only: tarfile would hold them whole."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _LONG_HEADERS and self.size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"the header of a file is longer than {_MAX_HEADER_BYTES} bytes")
        found: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return found


class _Member(NamedTuple):
    layer: int
    name: str
    link: str | None = None
    hard: bool = False


class LayerFiles:
    """The files that a stack of layers makes up together."""

    def __init__(self, layers: Sequence[Open]) -> None:
        if len(layers) > MAX_LAYERS:
            raise malformed(f"it has more than {MAX_LAYERS} layers")
        self._layers = layers
        self._members: dict[str, _Member] = {}
        left = MAX_MEMBERS
        unpacked = MAX_UNPACKED_BYTES
        for at, layer in enumerate(layers):
            for member in _members(layer):
                left -= 1
                unpacked -= member.size
                if left < 0 or unpacked < 0:
                    raise malformed("its layers hold more than is looked through")
                self._note(at, member)

    def find(self, path: str) -> str | None:
        """Return where a path leads, through links, to a file that is there; None where to none."""
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

    def read(self, path: str) -> bytes | None:
        """Return a file's content, None where it is no plain file. Raises: InputError (OciMalformed)."""
        found = self.find(path)
        if found is None:
            return None
        wanted = self._members[found]
        with _opened(self._layers[wanted.layer]) as archive:
            for member in archive:
                if member.name == wanted.name:
                    return _content(archive, member)
        return None

    def _note(self, layer: int, member: tarfile.TarInfo) -> None:
        path = posixpath.normpath("/" + member.name)
        folder, name = posixpath.split(path)
        if name == _OPAQUE:
            self._forget(folder, layer, itself=False)
        elif name.startswith(_WHITEOUT):
            self._forget(posixpath.join(folder, name.removeprefix(_WHITEOUT)), layer, itself=True)
        elif member.issym() or member.islnk():
            self._members[path] = _Member(layer, member.name, member.linkname, hard=member.islnk())
        elif member.isreg():
            self._members[path] = _Member(layer, member.name)
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
def _opened(layer: Open) -> Iterator[tarfile.TarFile]:
    try:
        with layer() as file, tarfile.open(fileobj=file, mode="r|*", tarinfo=CarefulTarInfo) as archive:
            yield archive
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise malformed(f"a layer cannot be read, or is packed in a way not known here: {error}") from error


def _members(layer: Open) -> Iterator[tarfile.TarInfo]:
    with _opened(layer) as archive:
        yield from archive


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | None:
    file = archive.extractfile(member) if member.isreg() else None
    if file is None or member.size > MAX_FILE_BYTES:
        return None
    return file.read()
