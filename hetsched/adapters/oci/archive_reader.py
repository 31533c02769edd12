"""Reader of untrusted tar archives with bounded cost: processor time, bytes, members and memory.

A gzip file of 6 MB can contain 1,000,000 empty members, which tarfile keeps as 500 MiB of objects, and xz can request a
dictionary of 1.5 GiB. A limit on members is not sufficient, because headers without members, sparse maps and global
attributes also use memory. All archives of an inspection share one `InspectionBudget`. This module decompresses
archives in pieces, so every byte is counted independently of tarfile; members are discarded after use.
"""

from __future__ import annotations

import bz2
import lzma
import re
import tarfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from sys import getsizeof
from typing import IO, Any, Protocol

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message

from .documents import malformed

MAX_SECONDS = 10.0
MAX_MEMBERS = 200_000
MAX_UNPACKED_BYTES = 2 << 30
MAX_INDEX_BYTES = 48 << 20
MAX_PATH = 4096  # PATH_MAX of Linux
_XZ_MEMORY_BYTES = 40 << 20
_ENTRY_BYTES = 120  # size of an index entry without its name
_PIECE = 1 << 17
_MAGIC_BYTES = 6  # the longest magic number, that of xz
_MAX_HEADER_BYTES = 1 << 20
_LONG_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
                 tarfile.GNUTYPE_LONGLINK)  # fmt: skip
_RECORD = re.compile(rb"([1-9]\d{0,6}) ")
_LONG_NUMBER = re.compile(rb"\d{1000}")
_UNREADABLE = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, RecursionError, ValueError)


class InspectionBudget:
    """Remaining budget of one inspection; only the processor time of the thread that created it is counted."""

    def __init__(self) -> None:
        self._until = time.thread_time() + MAX_SECONDS
        self.members = MAX_MEMBERS
        self.index_bytes = MAX_INDEX_BYTES

    def check(self) -> None:
        """Check the time limit. Raises: InputError (OciTooLarge)."""
        if time.thread_time() > self._until:
            raise too_large(
                Message("the inspection of the image takes more than {n} s of CPU time", n=f"{MAX_SECONDS:.0f}")
            )

    def take_member(self) -> None:
        """Count a member of an archive. Raises: InputError (OciTooLarge)."""
        self.check()
        self.members -= 1
        if self.members < 0:
            raise too_large(Message("the archives of the image have more than {n} members", n=MAX_MEMBERS))

    def take_index(self, *names: str | None) -> None:
        """Count an index entry that is kept in memory. Raises: InputError (OciTooLarge)."""
        self.index_bytes -= _ENTRY_BYTES + sum(getsizeof(name) for name in names if name is not None)
        if self.index_bytes < 0:
            raise too_large("the file names in the image require too much memory")


def too_large(message: str) -> InputError:
    return InputError(
        "OciTooLarge", message, hint="inspect one platform's image, as an unpacked OCI layout or as a plain tar file"
    )


class Readable(Protocol):
    """Sequential source of bytes."""

    def read(self, size: int, /) -> bytes: ...


class Unpacked:
    """Decompressed content of a gzip, bzip2, xz or plain file. Reading raises InputError (OciTooLarge)."""

    def __init__(self, file: Readable, effort: InspectionBudget) -> None:
        self._file = file
        self._effort = effort
        self._packed = file.read(_PIECE)
        self._unpacker = _unpacker(self._packed)
        self.is_packed = self._unpacker is not None
        self._left = MAX_UNPACKED_BYTES

    def read(self, size: int) -> bytes:
        """Return the next bytes (possibly fewer than `size`), or empty bytes only at the end."""
        self._effort.check()
        found = self._plain(size) if not self.is_packed else self._unpack(size)
        self._left -= len(found)
        if self._left < 0 and self.is_packed:
            raise too_large(Message("the image is larger than {n} GiB when unpacked", n=MAX_UNPACKED_BYTES >> 30))
        return found

    def _plain(self, size: int) -> bytes:
        found = self._packed[:size] or self._file.read(size)
        self._packed = self._packed[size:]
        return found

    def _unpack(self, size: int) -> bytes:
        while self._unpacker is not None:
            found: bytes = self._unpacker.decompress(self._packed, size)
            self._packed = getattr(self._unpacker, "unconsumed_tail", b"")
            if self._unpacker.eof:
                # A compressed file may consist of several streams, separated by zeros; continue with the next one.
                self._packed = self._next_start(self._unpacker.unused_data.lstrip(b"\0"))
                self._unpacker = _unpacker(self._packed)
            elif not self._packed and getattr(self._unpacker, "needs_input", True):
                self._packed = self._file.read(_PIECE)
                if not self._packed and not found:
                    raise EOFError("the compressed data is truncated")
            if found:
                return found
            self._effort.check()
        return b""

    def _next_start(self, rest: bytes) -> bytes:
        """Return the next bytes after the padding, enough to detect the type of the stream that begins with them."""
        while len(rest) < _MAGIC_BYTES and (piece := self._file.read(_PIECE)):
            self._effort.check()
            rest = (rest + piece).lstrip(b"\0")
        return rest


def _unpacker(start: bytes) -> Any:
    """Return the decompressor for a file that starts with these bytes, or None if it is not compressed."""
    if start.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(wbits=31)
    if start.startswith(b"BZh"):
        return bz2.BZ2Decompressor()
    if start.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
    return None


class _ReplayedStream:
    """A stream whose first piece was already read; the first read returns this piece again."""

    def __init__(self, piece: bytes, stream: Any) -> None:
        self._piece: bytes | None = piece
        self._stream = stream

    def read(self, size: int) -> Any:
        piece, self._piece = self._piece, None
        return self._stream.read(size) if piece is None else piece

    def tell(self) -> Any:
        return self._stream.tell()


def _check_records(content: bytes) -> None:
    """Check the records `LENGTH KEY=VALUE\n` of an extended header.

    Some versions of tarfile need quadratic time and memory for records with a wrong length and for long numbers.
    Raises: tarfile.ReadError.
    """
    if _LONG_NUMBER.search(content):
        raise tarfile.ReadError("a number in an extended header is too long")
    at = 0
    while at < len(content):
        found = _RECORD.match(content, at)
        end = at + int(found[1]) if found else 0
        if (
            found is None
            or not found.end() < content.find(b"=", at, end) < end <= len(content)
            or content[end - 1] != 10
        ):
            raise tarfile.ReadError("a record of an extended header is malformed")
        if content.startswith(b"GNU.sparse.", found.end()):
            raise tarfile.ReadError("the archive contains a sparse file")
        at = end


class CarefulTarInfo(tarfile.TarInfo):
    """A member whose long name or attributes are read up to a limit; tarfile would read them completely."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _LONG_HEADERS and self.size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"the header of a file is longer than {_MAX_HEADER_BYTES} bytes")
        if (
            self.type == tarfile.XGLTYPE
            and sum(len(name) + len(value) for name, value in archive.pax_headers.items()) > _MAX_HEADER_BYTES
        ):
            raise tarfile.ReadError(f"the global attributes are longer than {_MAX_HEADER_BYTES} bytes")
        found: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        if found.size < 0:
            raise tarfile.ReadError("the size of a file is negative")
        return found

    def _proc_pax(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        stream: Any = archive.fileobj
        content = stream.read(-(-self.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)
        _check_records(content[: self.size])
        archive.fileobj = _ReplayedStream(content, stream)  # type: ignore[assignment]
        try:
            found: tarfile.TarInfo = super()._proc_pax(archive)  # type: ignore[misc]
        finally:
            archive.fileobj = stream
        return found

    def _proc_sparse(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        raise tarfile.ReadError("the archive contains a sparse file")

    def _proc_gnusparse_10(self, next: Any, pax_headers: Any, archive: tarfile.TarFile) -> None:
        raise tarfile.ReadError("the archive contains a sparse file")


@contextmanager
def readable(template: str) -> Iterator[None]:
    """Convert errors of untrusted archives to InputError (OciMalformed) with the message `template`."""
    try:
        yield
    except InputError:
        raise
    except _UNREADABLE as error:
        why = Message("the content is nested too deeply") if isinstance(error, RecursionError) else str(error)
        raise malformed(Message(template, text=why)) from error


def members(file: Readable, effort: InspectionBudget) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield the members of an archive in order; each must be read before the next is requested.

    Raises: InputError (OciTooLarge); errors of tarfile and of the decompressors.
    """
    with tarfile.open(fileobj=Unpacked(file, effort), mode="r|", bufsize=_PIECE, tarinfo=CarefulTarInfo) as archive:  # type: ignore[call-overload]
        remaining = MAX_UNPACKED_BYTES
        while (member := archive.next()) is not None:
            archive.members.clear()
            effort.take_member()
            remaining -= member.size
            if remaining < 0:
                raise too_large(Message("the image is larger than {n} GiB when unpacked", n=MAX_UNPACKED_BYTES >> 30))
            yield archive, member


class Slice:
    """A part of a shared file; without a size, it extends to the end of the file."""

    def __init__(self, file: IO[bytes], start: int = 0, size: int | None = None) -> None:
        self._file = file
        self._at = start
        self._end = None if size is None else start + size

    def __enter__(self) -> Slice:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, size: int) -> bytes:
        self._file.seek(self._at)
        found = self._file.read(size if self._end is None else max(min(size, self._end - self._at), 0))
        self._at += len(found)
        return found
