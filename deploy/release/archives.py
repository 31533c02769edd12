"""Archives that depend only on the content of the packed files."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

_EXECUTABLE, _PLAIN = 0o755, 0o644


def pack(folder: Path, target: Path, name: str, seconds: int) -> None:
    """Pack a folder under the top-level name `name`; members have the time `seconds` (Unix time) and no owner."""
    with (
        target.open("wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=seconds) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(_files(folder)):
            member = tarfile.TarInfo(f"{name}/{path.relative_to(folder).as_posix()}")
            member.size, member.mtime = path.stat().st_size, seconds
            member.mode = _EXECUTABLE if path.stat().st_mode & 0o100 else _PLAIN
            with path.open("rb") as content:
                archive.addfile(member, content)


def _files(folder: Path) -> Iterator[Path]:
    """Yield all files, also those of linked folders: the chart links the folders that other installations use too."""
    for parent, _, names in os.walk(folder, followlinks=True):
        yield from (Path(parent, name) for name in names)


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS of all files of a folder, in the form that `sha256sum --check` reads."""
    files = [file for file in sorted(folder.iterdir()) if file.is_file() and file.name != "SHA256SUMS"]
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (folder / "SHA256SUMS").write_text("".join(lines))
