"""What the platforms of an image index ask of a node.

Rule: platforms are normalised as containerd does; other systems and attestations are dropped. Each architecture gets a
floor, the lowest of its variants: none -> x86-64-v1, armv8.0-a, rv64gc; amd64/v3 -> x86-64-v3; riscv64/rva22u64 -> that
profile. A pod may use only architectures that all its containers offer, at the highest of their floors.
Source: opencontainers/image-spec image-index.md; containerd/platforms.
An architecture outside the lattice (s390x, 386, arm) is offered, with no floor: None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hetsched.contracts.errors import InputError

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
_ARM_NAMES = {"armhf": "v7", "armel": "v6"}
_RISCV_VARIANTS = ("", "rva20u64", "rva22u64", "rva23u64")
Platform = tuple[str, str, str]


def normalise(platform: str) -> Platform:
    """Return (system, architecture, variant) of `linux/arm64/v8`; the variant is empty where it says nothing."""
    parts = [part.strip().lower() for part in platform.split("/")]
    if len(parts) not in (2, 3) or not all(parts[:2]):
        refuse("PlatformMalformed", f"{platform!r} is no platform", hint="write linux/amd64 or linux/arm64/v8")
    system, written = parts[0], parts[1]
    variant = parts[2] if len(parts) == 3 else ""
    architecture = _ARCHITECTURES.get(written, written)
    variant = _ARM_NAMES.get(written) or _VARIANTS.get(architecture, {}).get(variant, variant)
    return "macos" if system == "darwin" else system, architecture, variant


def floor(architecture: str, variant: str = "") -> Isa | None:
    """Return what a program built for this normalised platform needs; None outside the lattice."""
    if architecture == "amd64":
        text = f"x86-64-{variant or 'v1'}"
    elif architecture == "arm64":
        number = variant.lstrip("v") or "8.0"
        text = f"armv{number if '.' in number else number + '.0'}-a"
    elif architecture == "riscv64" and variant in _RISCV_VARIANTS:
        text = variant or "rv64gc"
    else:
        return None
    try:
        return parse(text)
    except InputError:
        # A variant newer than our tables: nothing can be promised about it, so it is unknown like a foreign machine.
        return None


def image_floors(platforms: Iterable[str]) -> dict[str, Isa | None]:
    """Map each Linux architecture that one image offers to its lowest floor."""
    floors: dict[str, Isa | None] = {}
    for platform in platforms:
        system, architecture, variant = normalise(platform)
        if system != "linux" or architecture == "unknown":
            continue
        found, known = floor(architecture, variant), floors.get(architecture)
        floors[architecture] = found if known is None else known if found is None else min(known, found, key=_rank)
    return dict(sorted(floors.items()))


def image_warnings(platforms: Iterable[str]) -> list[str]:
    """Name the nodes that meet a floor and whose stock containerd refuses the image all the same."""
    offered = {normalise(platform) for platform in platforms}
    return [
        f"stock containerd takes this image on no linux/{architecture} node: the index has variants only"
        for architecture in ("amd64", "riscv64")
        if any(platform[:2] == ("linux", architecture) for platform in offered)
        and ("linux", architecture, "") not in offered
    ]


def pod_floors(images: Iterable[Mapping[str, Isa | None]]) -> dict[str, Isa | None]:
    """Combine the floors of a pod's images: architectures that all offer, each at the highest floor."""
    combined: dict[str, Isa | None] | None = None
    for image in images:
        if combined is None:
            combined = dict(image)
            continue
        combined = {name: _highest(combined[name], image[name]) for name in combined if name in image}
    return combined or {}


def _rank(isa: Isa) -> int:
    return _RISCV_VARIANTS.index(isa.profile or "") if isa.arch == "riscv" else len(isa.extensions)


def _highest(one: Isa | None, other: Isa | None) -> Isa | None:
    if one is None or other is None:
        return None
    if one.arch == "arm":
        # Levels of the two lines are joined: armv8.7 with armv9.0 is armv9.2.
        return parse(ARM.highest_level(one.extensions | other.extensions) or one.canonical)
    return max(one, other, key=_rank)
