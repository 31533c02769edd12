"""Persistent state of CPU pinning, in one file that is either complete or absent.

An agent that was killed must restore all pins before the control plane responds, and a power failure must not leave a
partial file. The file is written under another name, flushed and renamed, and then the folder is flushed; the first
line is the SHA-256 of the rest. An unreadable file is treated as absent: annotations and the runtime's state are read
again, and the next response of the control plane contains the key. Only the file's owner can read it, because it
contains the node's key. An agent pins containers only while it holds the folder's lock.
Invariant: a file that can be loaded is exactly as it was written.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from hetsched.contracts.documents import encode
from hetsched.contracts.messages.agent_report import MachineProblem

from .grants import VerifiedGrant

FILE = "pins"
MAX_BYTES = 16 * 1024 * 1024


class PinState(msgspec.Struct, frozen=True):
    """Signing key of the node, its verified allocations by pod UID, and the CPUs of immovable containers by ID."""

    node: str
    cluster: str = ""
    key: bytes | None = None
    known: dict[str, VerifiedGrant] = {}
    settled: dict[str, str] = {}


class StateFile:
    """The state file in its folder, which is created if missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: bytes | None = None
        self._lock: int | None = None
        self.problem: MachineProblem | None = None

    def locked(self) -> bool:
        """Return whether this agent holds the folder's lock; a free lock is acquired. Raises: OSError."""
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

    def load(self, node: str) -> PinState:
        """Return the last saved state of this node, or an empty state."""
        self.problem = None
        path = self._folder / FILE
        try:
            with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                data = file.read(MAX_BYTES + 1)
            state = _read(data)
        except FileNotFoundError:
            return PinState(node)
        except (OSError, ValueError) as error:
            self.problem = MachineProblem("PinsForgotten", f"{path} cannot be read and is replaced: {error}", str(path))
            return PinState(node)
        if state.node != node:
            self.problem = MachineProblem(
                "PinsForgotten", f"{path} belongs to node {state.node} and is replaced", str(path)
            )
            return PinState(node)
        self._written = data
        return state

    def save(self, state: PinState) -> None:
        """Write the state if it changed. Raises: OSError."""
        data = _write(state)
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


def _write(state: PinState) -> bytes:
    body = encode(state, order="deterministic")
    return sha256(body).hexdigest().encode() + b"\n" + body


def _read(data: bytes) -> PinState:
    """Return the state in a file. Raises: ValueError."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"the file is larger than {MAX_BYTES} bytes")
    digest, _, body = data.partition(b"\n")
    if sha256(body).hexdigest().encode() != digest:
        raise ValueError("the checksum is wrong")
    return msgspec.json.decode(body, type=PinState)
