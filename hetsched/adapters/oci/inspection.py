"""Requirements of programs and images, derived from their bytes alone.

An ELF file contains its own requirement. The requirement of an image is that of its platforms, raised by the
requirement of the program that it starts. The requirement of a folder is, for each architecture, the union of the
requirements of its programs. Nothing is executed or unpacked, links in a folder are not followed, and the number of
inspected files is limited; omissions are listed in `problems`.

The program that a container of an image starts is the first word of Entrypoint, otherwise of Cmd; a name without a
slash is looked up in the PATH of the configuration. A script is resolved to the interpreter in its first line by the
same rules. If the entry program cannot be determined, problems are returned, not raised, because the pod may state
another command.
Source: opencontainers/image-spec config.md; execve(2) "Interpreter scripts".
"""

from __future__ import annotations

import io
import mmap
import os
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from hetsched.contracts.documents import to_plain
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.isa import parse
from hetsched.isa.elf import ElfNeed, inspect_elf
from hetsched.isa.platforms import image_floors, image_warnings, normalise
from hetsched.isa.union import joint_requirement

from .layers import LayerFiles
from .layout import Image, ImageLayout, opened

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAX_SCRIPTS = 4
_MAX_FOLDERS = 256


def entry_programs(files: LayerFiles, configuration: Any) -> tuple[dict[str, ElfNeed], list[str]]:
    """Return the ELF programs of the entry point by path, and the problems found."""
    settings = configuration.get("config") if isinstance(configuration, dict) else None
    settings = settings if isinstance(settings, dict) else {}
    word = _first(settings.get("Entrypoint")) or _first(settings.get("Cmd"))
    if word is None:
        return {}, ["the image has neither an Entrypoint nor a Cmd"]
    folders = _path(settings.get("Env"))
    for _ in range(_MAX_SCRIPTS):
        path = _located(files, word, folders, str(settings.get("WorkingDir") or "/"))
        content = files.read(path) if path else None
        if path is None or content is None:
            return {}, [f"{word[:200]} is not in any layer of the image"]
        script = _interpreter(content)
        if script is None:
            try:
                return {path: inspect_elf(content)}, []
            except InputError as error:
                return {}, [f"{path}: {error.message}"]
        word = script
    return {}, [f"the entry point runs {_MAX_SCRIPTS} nested scripts; {word[:200]} was not examined"]


def _located(files: LayerFiles, word: str, folders: list[str], working: str) -> str | None:
    if "/" in word:
        return files.find(posixpath.join("/", working, word))
    return next((found for folder in folders if (found := files.find(posixpath.join("/", folder, word)))), None)


def _interpreter(content: memoryview) -> str | None:
    start = bytes(content[:256])
    if not start.startswith(b"#!"):
        return None
    words = start[2:].partition(b"\n")[0].decode("utf-8", "replace").split()
    # `env NAME` looks up NAME in the PATH.
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


MAX_FILES = 100_000
MAX_PROGRAMS = 5_000
MAX_IMAGES = 16
_MAX_PROBLEMS = 100
_TAR_MAGIC = slice(257, 262)
_ARCHITECTURES = {"x86-64": "amd64", "aarch64": "arm64", "ppc64": "ppc64le", "s390": "s390x", "loongarch": "loong64"}


class ProgramNeed(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One program with its path and requirement; `requirement` is None if the ISA lattice lacks its machine."""

    file: str
    machine: str
    bits: int
    requirement: str | None
    evidence: str
    arch_attribute: str | None = None
    platform: str = ""


class Inspection(msgspec.Struct, frozen=True, rename="camel"):
    """Inspection result; `requirements` is keyed by Kubernetes architecture, `requirement` is set if it is unique."""

    format: str
    requirements: dict[str, str | None]
    platforms: tuple[str, ...] = ()
    programs: tuple[ProgramNeed, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def requirement(self) -> str | None:
        return next(iter(self.requirements.values())) if len(self.requirements) == 1 else None

    def document(self) -> dict[str, Any]:
        """Return the JSON document of `hetsched isa inspect -o json` and of the REST API, without the file's name."""
        if self.format == "elf":
            program: dict[str, Any] = to_plain(self.programs[0])
            del program["file"]
            return {"format": "elf"} | program
        document: dict[str, Any] = {"format": self.format}
        if self.format != "directory":
            document["platforms"] = list(self.platforms)
        document |= {"requirements": self.requirements, "requirement": self.requirement}
        document |= {"warnings": list(self.warnings), "programs": to_plain(self.programs)}
        return document | {"problems": list(self.problems)}


def inspect_bytes(data: bytes, name: str = "") -> Inspection:
    """Inspect an ELF program or an image archive. Raises: InputError (ElfMalformed, OciMalformed and others)."""
    if looks_like_archive(data[: _TAR_MAGIC.stop]):
        return _image(io.BytesIO(data))
    return _program(memoryview(data), name)


def inspect_path(path: Path) -> Inspection:
    """Inspect a program, an image layout or archive, or a folder of programs. Raises: InputError."""
    if path.is_dir():
        return _image(path) if _is_unpacked_image(path) else _folder(path)
    try:
        with path.open("rb") as stream:
            start = stream.read(_TAR_MAGIC.stop)
            if looks_like_archive(start):
                return _image(path)
            return _program(_mapped(stream), str(path))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError("ElfMalformed", "the file is not an ELF file: it is empty or cannot be mapped") from error
    except OSError as error:
        hint = "Check the path and its permissions"
        raise InputError(
            "FileUnreadable",
            Message("{name} cannot be read: {text}", name=str(path), text=error.strerror or str(error)),
            hint=hint,
        ) from error


def _is_unpacked_image(folder: Path) -> bool:
    """Return whether a folder is a layout or an unpacked `docker save`; other folders may have a manifest.json too."""
    if (folder / "oci-layout").is_file():
        return True
    try:
        with (folder / "manifest.json").open("rb") as file:
            return b'"Layers"' in file.read(65536)
    except OSError:
        return False


def looks_like_archive(start: bytes) -> bool:
    """Return whether a file that starts with these 262 bytes is a tar file, compressed or not."""
    return start[_TAR_MAGIC] == b"ustar" or start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0"))


def _program(data: memoryview, name: str) -> Inspection:
    need = _need(name, inspect_elf(data))
    return Inspection("elf", {_architecture(need): need.requirement}, programs=(need,))


def _image(place: Path | IO[bytes]) -> Inspection:
    with opened(place) as layout:
        platforms = layout.platforms()
        requirements = {name: floor.canonical if floor else None for name, floor in image_floors(platforms).items()}
        programs, problems = [], []
        warnings = image_warnings(platforms)
        for at, image in enumerate(layout.images()):
            if at >= MAX_IMAGES:
                problems.append(f"only the first {MAX_IMAGES} images are examined")
                break
            needs, unread = _entry(layout, image)
            programs += needs
            problems += [f"{image.platform}: {reason}" for reason in unread]
            warnings += _raised(requirements, image, needs)
        form = "oci-layout" if layout.is_oci else "docker-archive"
    return Inspection(form, requirements, platforms, tuple(programs), _printable(warnings), _printable(problems))


def _entry(layout: ImageLayout, image: Image) -> tuple[list[ProgramNeed], list[str]]:
    if not image.platform.startswith("linux/") or not image.layers:
        return [], [] if image.layers else ["the image has no layers"]
    try:
        found, problems = entry_programs(layout.files(image), image.configuration)
    except InputError as error:
        return [], [error.message]
    return [_need(file, need, image.platform) for file, need in found.items()], problems


def _raised(requirements: dict[str, str | None], image: Image, needs: list[ProgramNeed]) -> list[str]:
    """Add the requirements of an image's programs to its architecture; return contradictions with its platform."""
    _, architecture, _ = normalise(image.platform)
    warnings = []
    for need in needs:
        if _architecture(need) != architecture:
            warnings.append(
                f"{need.file} is a program for {_architecture(need)}, but the image is for {image.platform}"
            )
        elif (floor := requirements.get(architecture)) and need.requirement:
            # A floor, for example a profile, that already covers the requirement of a program is not changed.
            raised = joint_requirement((floor, need.requirement)) if not _covers(floor, need.requirement) else floor
            requirements[architecture] = raised
    return warnings


def _covers(floor: str, requirement: str) -> bool:
    return parse(requirement).extensions <= parse(floor).extensions


def _folder(root: Path) -> Inspection:
    programs: list[ProgramNeed] = []
    problems: list[str] = []
    for at, file in enumerate(_files(root)):
        if at >= MAX_FILES or len(programs) >= MAX_PROGRAMS:
            problems.append(f"only the first {at} files are examined")
            break
        try:
            if (need := _program_file(root, file)) is not None:
                programs.append(need)
        except (OSError, ValueError) as error:
            reason = error.message if isinstance(error, InputError) else str(error)
            problems.append(f"{file.relative_to(root)}: {reason}")
    if not programs:
        raise InputError("OciMalformed", "the folder is not an image layout and contains no program")
    requirements: dict[str, str | None] = {}
    for architecture in sorted({_architecture(need) for need in programs}):
        needs = [need.requirement for need in programs if _architecture(need) == architecture]
        try:
            requirements[architecture] = joint_requirement(needs)
        except InputError as error:
            requirements[architecture] = None
            problems.append(f"{architecture}: {error.message}")
    return Inspection("directory", requirements, programs=tuple(programs), problems=_printable(problems))


def _files(root: Path) -> Iterator[Path]:
    """Yield the plain files below a folder in order; links are not followed."""
    for folder, folders, names in os.walk(root, followlinks=False):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield path


def _program_file(root: Path, file: Path) -> ProgramNeed | None:
    with file.open("rb") as stream:
        if stream.read(4) != b"\x7fELF":
            return None
        return _need(str(file.relative_to(root)), inspect_elf(_mapped(stream)))


def _mapped(stream: IO[bytes]) -> memoryview:
    """Map a file into memory; it is unmapped when no part of it is referenced any more."""
    return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))


def _need(file: str, need: ElfNeed, platform: str = "") -> ProgramNeed:
    written = file.encode("utf-8", "replace").decode()
    attribute = need.arch_attribute
    return ProgramNeed(written, need.machine, need.bits, need.requirement, need.evidence, attribute, platform)


def _printable(texts: list[str]) -> tuple[str, ...]:
    """Replace bytes of file names that are not UTF-8, because JSON cannot represent them."""
    return tuple(text.encode("utf-8", "replace").decode() for text in texts[:_MAX_PROBLEMS])


def _architecture(need: ProgramNeed) -> str:
    return f"riscv{need.bits}" if need.machine == "riscv" else _ARCHITECTURES.get(need.machine, need.machine)
