"""What the agent knows of its pins across restarts, in one file that is whole or not there.

Problem: an agent that was killed must put everything back where it was before the control plane answers, and a power
cut must not leave half a file.
Rule: the file is written under another name, flushed, renamed, and its folder flushed; its first line is the SHA-256 of
the rest. What cannot be read is as if it were not there: what pods carry and the runtime knows is read again, and the
key comes with the next answer of the control plane. It is readable by its owner alone, because the node's key is in it.
One agent at a time holds the folder's lock; another pins nothing.
Invariant: a file that loads is one that was written.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from hetsched.contracts.agent_report import MachineProblem

from .grants import Known

FILE = "pins"
MAX_BYTES = 16 * 1024 * 1024


class Kept(msgspec.Struct, frozen=True):
    """Who signs for the node, what it signed by pod uid, and where immovable containers are by id, as CPU lists."""

    node: str
    cluster: str = ""
    key: bytes | None = None
    known: dict[str, Known] = {}
    settled: dict[str, str] = {}


class StateFile:
    """The file in its folder, which is made where it is missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: bytes | None = None
        self._lock: int | None = None
        self.problem: MachineProblem | None = None

    def locked(self) -> bool:
        """Tell whether this agent holds the folder, taking it if nobody does. Raises: OSError."""
        if self._lock is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            self._lock = lock
        return True

    def release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def load(self, node: str) -> Kept:
        """Return what was written last for this node, or nothing."""
        self.problem = None
        path = self._folder / FILE
        try:
            with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                data = file.read(MAX_BYTES + 1)
            kept = _read(data)
        except FileNotFoundError:
            return Kept(node)
        except (OSError, ValueError) as error:
            self.problem = MachineProblem(
                "PinsForgotten", f"{path} cannot be read and is made anew: {error}", str(path)
            )
            return Kept(node)
        if kept.node != node:
            self.problem = MachineProblem("PinsForgotten", f"{path} is of node {kept.node} and made anew", str(path))
            return Kept(node)
        self._written = data
        return kept

    def save(self, kept: Kept) -> None:
        """Write what is known, if it is not what was written last. Raises: OSError."""
        data = _write(kept)
        if data == self._written:
            return
        unfinished = self._folder / f"{FILE}.new"
        with suppress(FileNotFoundError):
            unfinished.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(unfinished, flags, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(self._folder / FILE)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._written = data


def _write(kept: Kept) -> bytes:
    body = msgspec.json.encode(kept, order="deterministic")
    return sha256(body).hexdigest().encode() + b"\n" + body


def _read(data: bytes) -> Kept:
    """Return what a file holds. Raises: ValueError."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    digest, _, body = data.partition(b"\n")
    if sha256(body).hexdigest().encode() != digest:
        raise ValueError("its checksum is wrong")
    return msgspec.json.decode(body, type=Kept)
