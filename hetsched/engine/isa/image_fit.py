"""Check whether a pod's images have a build that runs on a node.

If an image has no build for the node's architecture, or only a build for newer cores, its container crashes in a loop.
All images must offer the node's architecture, and the node must have the instruction set that the builds for this
architecture require (the floor). If a node states only a lower bound of its instruction set, it is assumed to have the
baseline of its architecture (x86-64-v1, armv8.0-a, rv64gc), because the kubelet that runs on it requires this baseline
too. All other features beyond the lower bound are unknown. An emulator runs the images if it covers their floor for the
emulated architecture. Architectures outside the lattice are compared by name.
Source: public contract section 1; opencontainers/image-spec image-index.md; GORISCV64=rva20u64 of the Go toolchain.
"""

from __future__ import annotations

from functools import lru_cache

from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.node_report import IsaReport
from hetsched.contracts.objects.workload import ImageDemand
from hetsched.engine.framework.status import Refusal
from hetsched.isa import match

from .isa_strings import architecture, may_have, missing_features, offered_isa, required_isa

_BASES = {name: required_isa(text).canonical for name, text in (
    ("amd64", "x86-64-v1"), ("arm64", "armv8.0-a"), ("riscv64", "rv64gc"),
)}  # fmt: skip
UNKNOWN_IMAGE = Refusal("ImageUnknown", Message("the platforms of the pod's images are unknown"), unknown=True)
NONE_IN_COMMON = Refusal("ImagesDisagree", Message("the pod's images have no Linux architecture in common"))


@lru_cache(maxsize=65536)
def image_gap(images: ImageDemand, offer: IsaReport) -> Refusal | None:
    """Return why the images do not run natively on a node; None if they do, or if their platforms are unknown."""
    if images.floors is None:
        return None
    floors = dict(images.floors)
    if not floors:
        return NONE_IN_COMMON
    arch = offer.arch if offer.native is None else architecture(offered_isa(offer.native))
    if not arch:
        return Refusal(
            "ImagePlatformUnknown",
            Message("the node's architecture is unknown, but the pod's images require a specific architecture"),
            unknown=True,
        )
    if arch not in floors:
        message = Message(
            "the pod's images are built for {names}, but the node is {arch}", names=joined(", ", floors), arch=arch
        )
        return Refusal("ImagePlatformMissing", message, missing=(arch,))
    floor, base = floors[arch], _BASES.get(arch)
    if base is None or (floor == base and not (offer.complete and offer.native)):
        return None
    if not floor:
        message = Message("the pod's images are built for an unknown variant of {arch}", arch=arch)
        return Refusal("ImageVariantUnknown", message, unknown=True)
    missing = match(required_isa(floor), offered_isa(offer.native)).missing if offer.native else (floor,)
    if not missing:
        return None
    if may_have(offer, required_isa(floor)):
        message = Message(
            "the pod's images require {isa} on {arch}, but no source reports whether the node has it",
            isa=floor,
            arch=arch,
        )
        return Refusal("ImageVariantUnknown", message, missing=missing, unknown=True)
    missing = missing_features(offer, required_isa(floor)) or missing
    message = Message(
        "the pod's images require {isa} on {arch}, but the node lacks {names}",
        isa=floor,
        arch=arch,
        names=joined(", ", missing),
    )
    return Refusal("ImageVariantMissing", message, missing=missing)


def variant_warnings(images: ImageDemand, offer: IsaReport) -> tuple[str, ...]:
    """Return warnings for images that a stock containerd refuses on a node although the node can run them."""
    if not images.variants_only:
        return ()
    arch = offer.arch if offer.native is None else architecture(offered_isa(offer.native))
    return tuple(
        Message(
            "containerd with default settings rejects {image} on this node: its index has only CPU variants of {arch}",
            image=image,
            arch=arch,
        )
        for of, image in images.variants_only
        if of == arch
    )


@lru_cache(maxsize=65536)
def emulator_covers(images: ImageDemand, offered: str) -> bool:
    """Return whether an emulator with this instruction set runs the images."""
    if images.floors is None:
        return True
    isa = offered_isa(offered)
    floor = dict(images.floors).get(architecture(isa), "")
    return bool(floor) and match(required_isa(floor), isa).satisfied
