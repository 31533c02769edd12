"""Read /proc and /sys, or a copy of them, without leaving their root.

sysfs is full of links, and a copied or hostile tree may contain links to the outside, FIFOs, devices, huge files and
binary files. Every path is walked component by component with directory descriptors. A link is followed within the tree
as if the tree's root were `/`, and at most 40 links are followed. Only regular files are read, in non-blocking mode and
up to a size limit. A missing file is read as None. If an existing file is not plain text, the result is None and a
`MachineProblem` is recorded.
Source: chroot(2) semantics of path_resolution(7).
Invariant: nothing outside the root is opened, and no read waits for a writer.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from pathlib import Path

from hetsched.contracts.messages.agent_report import MachineProblem

MAX_BYTES = 64 * 1024
MAX_NAMES = 100_000
_MAX_LINKS = 40
_ENTER = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.EINVAL})


class Tree:
    """Files of one machine below `root`; irregularities are collected in `problems`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.problems: list[MachineProblem] = []

    @property
    def is_this_machine(self) -> bool:
        return self.root == Path("/")

    def text(self, path: str, limit_bytes: int = MAX_BYTES) -> str | None:
        """Return a file's text without surrounding white space, or None if it cannot be read as text."""
        data = self.data(path, limit_bytes)
        if data is None:
            return None
        # Device tree strings end with a NUL; in other files a NUL is a sign of binary data.
        data = data.removesuffix(b"\0")
        try:
            if b"\0" not in data:
                return data.decode().strip()
        except UnicodeDecodeError:
            pass
        self._add_problem("FileNotText", path, "the file contains binary data")
        return None

    def number(self, path: str) -> int | None:
        """Return the whole number in a file, or None if the file contains none."""
        text = self.text(path, 64)
        if text is None or text == "":
            return None
        try:
            return int(text)
        except ValueError:
            self._add_problem("FileNotNumber", path, f"{text[:40]!r} is not a whole number")
            return None

    def data(self, path: str, limit_bytes: int = MAX_BYTES) -> bytes | None:
        """Return a regular file's bytes, or None if it cannot be read."""
        try:
            found = self._walk(path)
            try:
                if not stat.S_ISREG(os.fstat(found).st_mode):
                    self._add_problem("FileNotRegular", path, "not a regular file")
                    return None
                # Opened through /proc/self/fd, so the checked file is read even if its name was replaced.
                reader = os.open(f"/proc/self/fd/{found}", _READ)
            finally:
                os.close(found)
            with open(reader, "rb", buffering=0) as file:
                return self._read(file.fileno(), path, limit_bytes)
        except OSError as error:
            self._failed(path, error)
            return None

    def names(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a directory, or an empty list if it does not exist."""
        try:
            found = self._walk(path)
            try:
                reader = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            finally:
                os.close(found)
            try:
                names = os.listdir(reader)
            finally:
                os.close(reader)
        except OSError as error:
            self._failed(path, error)
            return ()
        if len(names) > MAX_NAMES:
            self._add_problem("DirectoryTooLarge", path, f"the folder contains more than {MAX_NAMES} entries")
            return ()
        return tuple(sorted(names))

    def exists(self, path: str) -> bool:
        try:
            os.close(self._walk(path))
        except OSError:
            return False
        return True

    def link_name(self, path: str) -> str | None:
        """Return the last component of a link's target (in sysfs a driver or device name), or None without a link."""
        parent, _, name = path.rpartition("/")
        try:
            directory = self._walk(parent)
            try:
                return os.readlink(name, dir_fd=directory).rstrip("/").rpartition("/")[2]
            finally:
                os.close(directory)
        except OSError:
            return None

    def _walk(self, path: str) -> int:
        """Return an O_PATH descriptor of `path`. Raises: OSError."""
        ahead = deque(_parts(path))
        links = 0
        stack = [os.open(self.root, _ENTER & ~os.O_NOFOLLOW)]
        try:
            while ahead:
                part = ahead.popleft()
                if part == "..":
                    if len(stack) > 1:
                        os.close(stack.pop())
                    continue
                entry = os.open(part, _ENTER, dir_fd=stack[-1])
                if not stat.S_ISLNK(os.fstat(entry).st_mode):
                    stack.append(entry)
                    continue
                os.close(entry)
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, "too many symbolic links")
                target = os.readlink(part, dir_fd=stack[-1])
                if target.startswith("/"):
                    while len(stack) > 1:
                        os.close(stack.pop())
                ahead.extendleft(reversed(_parts(target)))
            return stack.pop()
        finally:
            for entry in stack:
                os.close(entry)

    def _read(self, file: int, path: str, limit_bytes: int) -> bytes | None:
        chunks, remaining = [], limit_bytes + 1
        while remaining > 0 and (chunk := os.read(file, min(remaining, 1 << 20))):
            chunks.append(chunk)
            remaining -= len(chunk)
        if remaining <= 0:
            self._add_problem("FileTooLarge", path, f"the file is larger than {limit_bytes} bytes")
            return None
        return b"".join(chunks)

    def _failed(self, path: str, error: OSError) -> None:
        if error.errno not in _ABSENT:
            self._add_problem("FileUnreadable", path, error.strerror or "the file cannot be read")

    def _add_problem(self, code: str, path: str, why: str) -> None:
        self.problems.append(MachineProblem(code, f"/{path.lstrip('/')}: {why}", f"/{path.lstrip('/')}"))


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
