"""The program that a container of an image starts, and its interpreter.

The program is the first word of Entrypoint, otherwise of Cmd; a name without a slash is looked up in the PATH of the
configuration. A script is resolved to the interpreter in its first line by the same rules. Problems are returned, not
raised, because another command may start the image.
Source: opencontainers/image-spec config.md; execve(2) "Interpreter scripts".
"""

from __future__ import annotations

import posixpath
from typing import Any

from hetsched.contracts.errors import InputError
from hetsched.isa.elf import ElfNeed, inspect_elf

from .layers import LayerFiles

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAX_SCRIPTS = 4
_MAX_FOLDERS = 256


def entry_programs(files: LayerFiles, configuration: Any) -> tuple[dict[str, ElfNeed], list[str]]:
    """Return the ELF programs of the entry point by their path, and the problems found."""
    settings = configuration.get("config") if isinstance(configuration, dict) else None
    settings = settings if isinstance(settings, dict) else {}
    word = _first(settings.get("Entrypoint")) or _first(settings.get("Cmd"))
    if word is None:
        return {}, ["the image names no program to start"]
    folders = _path(settings.get("Env"))
    for _ in range(_MAX_SCRIPTS):
        path = _located(files, word, folders, str(settings.get("WorkingDir") or "/"))
        content = files.read(path) if path else None
        if path is None or content is None:
            return {}, [f"{word[:200]} is in none of its layers"]
        script = _interpreter(content)
        if script is None:
            try:
                return {path: inspect_elf(content)}, []
            except InputError as error:
                return {}, [f"{path}: {error.message}"]
        word = script
    return {}, [f"{word[:200]} is a script of a script of a script"]


def _located(files: LayerFiles, word: str, folders: list[str], working: str) -> str | None:
    if "/" in word:
        return files.find(posixpath.join("/", working, word))
    return next((found for folder in folders if (found := files.find(posixpath.join("/", folder, word)))), None)


def _interpreter(content: memoryview) -> str | None:
    start = bytes(content[:256])
    if not start.startswith(b"#!"):
        return None
    words = start[2:].partition(b"\n")[0].decode("utf-8", "replace").split()
    # `env NAME` looks up NAME itself.
    if len(words) > 1 and posixpath.basename(words[0]) == "env" and not words[1].startswith("-"):
        return words[1]
    return words[0] if words else "/bin/sh"


def _first(words: Any) -> str | None:
    return words[0] if isinstance(words, list) and words and isinstance(words[0], str) and words[0] else None


def _path(environment: Any) -> list[str]:
    for entry in environment if isinstance(environment, list) else ():
        if isinstance(entry, str) and entry.startswith("PATH="):
            return [folder for folder in entry.removeprefix("PATH=").split(":", _MAX_FOLDERS) if folder][:_MAX_FOLDERS]
    return _DEFAULT_PATH.split(":")
