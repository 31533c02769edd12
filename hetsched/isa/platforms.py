"""Requirements of the platforms of an image index.

A platform is `os/architecture` or `os/architecture/variant`; each part is a plain ASCII word. It is normalised as in
containerd; other operating systems and attestations are dropped. Each architecture has a floor, the requirement of the
lowest of its variants. Without a variant this is x86-64-v1, armv8.0-a or rv64gc; for amd64/v3 it is x86-64-v3, for
riscv64/rva22u64 it is this profile. A pod can use only architectures that the images of all its containers support, and
its floor is the highest of their floors. The floor of an architecture outside the lattice (s390x, 386, arm) is None.
Source: opencontainers/image-spec image-index.md; containerd/platforms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message

from .arm import ARM
from .codes import refuse
from .requirement import parse
from .value import Isa

_ARCHITECTURES = {
    "x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64", "i386": "386", "armhf": "arm", "armel": "arm",
}  # fmt: skip
_VARIANTS = {
    "amd64": {"v1": ""},
    "arm64": {"8": "", "v8": "", "v8.0": "", "9": "v9", "v9.0": "v9"},
    "arm": {"": "v7", "5": "v5", "6": "v6", "7": "v7", "8": "v8"},
}
_WORD = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
# The operating system may include a version or features: windows(10.0.17763), linux(sse4).
_PLATFORM = re.compile(rf"({_WORD}(?:\([A-Za-z0-9_.+%-]{{0,200}}\))?)/({_WORD})(?:/({_WORD}))?", re.ASCII)
_ARM_NAMES = {"armhf": "v7", "armel": "v6"}
_AMD64_VARIANTS = ("", "v1", "v2", "v3", "v4")
_RISCV_VARIANTS = ("", "rva20u64", "rva22u64", "rva23u64")
# A 64-bit node also runs builds for its 32-bit predecessor architecture.
OLDER = {"amd64": "386", "arm64": "arm"}
Platform = tuple[str, str, str]


def normalise(platform: str) -> Platform:
    """Return (system, architecture, variant) of `linux/arm64/v8`; the variant is "" if it is not stated."""
    parts = _PLATFORM.fullmatch(platform)
    if parts is None:
        refuse(
            "PlatformMalformed",
            Message("{text} is not a valid platform", text=repr(platform[:80])),
            hint="write linux/amd64 or linux/arm64/v8",
        )
    system, written, variant = (part.lower() for part in (parts[1], parts[2], parts[3] or ""))
    architecture = _ARCHITECTURES.get(written, written)
    variant = _ARM_NAMES.get(written) or _VARIANTS.get(architecture, {}).get(variant, variant)
    return "macos" if system == "darwin" else system, architecture, variant


def floor(architecture: str, variant: str = "") -> Isa | None:
    """Return the requirement of a program built for this normalised platform, or None if the lattice lacks it."""
    if architecture == "amd64" and variant in _AMD64_VARIANTS:
        text = f"x86-64-{variant or 'v1'}"
    elif architecture == "arm64":
        number = variant.removeprefix("v") if variant else "8.0"
        text = f"armv{number if '.' in number else number + '.0'}-a"
    elif architecture == "riscv64" and variant in _RISCV_VARIANTS:
        text = variant or "rv64gc"
    else:
        return None
    try:
        return parse(text)
    except InputError:
        # The requirement of a variant newer than our tables is unknown, like that of a foreign architecture.
        return None


def image_floors(platforms: Iterable[str]) -> dict[str, Isa | None]:
    """Map each Linux architecture that an image supports to its lowest floor."""
    floors: dict[str, Isa | None] = {}
    for platform in platforms:
        system, architecture, variant = normalise(platform)
        if system != "linux" or architecture == "unknown":
            continue
        found, known = floor(architecture, variant), floors.get(architecture)
        floors[architecture] = found if known is None else known if found is None else min(known, found, key=_rank)
    return dict(sorted(floors.items()))


def archs_with_variants_only(platforms: Iterable[str]) -> tuple[str, ...]:
    """Return the architectures for which an image has only CPU variants, and no baseline build or 32-bit fallback."""
    offered = {normalise(platform) for platform in platforms}
    names = {platform[1] for platform in offered if platform[0] == "linux"}
    return tuple(
        architecture
        for architecture in ("amd64", "riscv64")
        if architecture in names and ("linux", architecture, "") not in offered and OLDER.get(architecture) not in names
    )


def image_warnings(platforms: Iterable[str]) -> list[str]:
    """Return a warning for each architecture on which nodes meet the floor but stock containerd rejects the image."""
    return [
        f"stock containerd rejects this image on every linux/{architecture} node: the index lists only variants"
        for architecture in archs_with_variants_only(platforms)
    ]


def pod_floors(images: Iterable[Mapping[str, Isa | None]]) -> dict[str, Isa | None]:
    """Return the architectures that all images of a pod support, each with the highest floor among the images."""
    combined: dict[str, Isa | None] | None = None
    for image in images:
        if combined is None:
            combined = dict(image)
            continue
        combined = {name: _highest(combined[name], image[name]) for name in combined if name in image}
    return combined or {}


def _rank(isa: Isa) -> int:
    return _RISCV_VARIANTS.index(isa.profile or "") if isa.arch == "riscv" else len(isa.extensions)


def _highest(isa: Isa | None, other: Isa | None) -> Isa | None:
    if isa is None or other is None:
        return None
    if isa.arch == "arm":
        # A level of the armv8 line and one of the armv9 line may not be comparable. Therefore the union of their
        # features determines the level: armv8.7 and armv9.0 together require armv9.2.
        return parse(ARM.highest_level(isa.extensions | other.extensions) or isa.canonical)
    return max(isa, other, key=_rank)
