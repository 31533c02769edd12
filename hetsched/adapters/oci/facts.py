"""Conversion of the facts about a pod's images into a demand of the pod.

Facts are added to a pod when it is read. Their sources are the pod's annotation `hetsched.io/image-platforms` and, in a
live cluster, the image indexes in registries, which take precedence. The annotation is a JSON object that maps each
image to a list of platforms, or to a text with the reason why they are unknown. A node must support all images of a
pod. An image without facts, or with an empty list of platforms, does not restrict the nodes and is marked as unknown.
As in containerd, a 64-bit node accepts images that are built only for the 32-bit variant of its architecture. Image
facts do not affect pods that select nodes with an OS other than Linux.
Source: public contract section 1; containerd/platforms.
"""

from __future__ import annotations

from collections.abc import Mapping
from json import JSONDecodeError

import msgspec

from hetsched.adapters.plain_values import read_json
from hetsched.contracts.errors import InputError, Problem
from hetsched.contracts.message import Message, as_message
from hetsched.contracts.objects.wishes import IMAGE_PLATFORMS
from hetsched.contracts.objects.workload import ImageDemand, ImageFacts, IsaDemand, PodSpec, Shape
from hetsched.isa import Isa
from hetsched.isa.platforms import OLDER, archs_with_variants_only, floor, image_floors, normalise, pod_floors

MOST_PLATFORMS = 256
NO_PLATFORM = "the image lists no platform"


def with_facts(pod: PodSpec, known: Mapping[str, ImageFacts]) -> PodSpec:
    """Return a pod with the `known` facts about its images; an image without a known fact keeps its previous fact."""
    stated = {facts.image: facts for facts in pod.image_facts}
    facts = tuple(_better(known.get(image), stated.get(image)) for image in pod.images)
    found = tuple(fact for fact in facts if fact is not None)
    return msgspec.structs.replace(pod, image_facts=found, shape=with_demand(pod.shape, found))


def without_facts(pod: PodSpec) -> PodSpec:
    """Return a pod without any image facts."""
    return msgspec.structs.replace(pod, image_facts=(), shape=with_demand(pod.shape, ())) if pod.image_facts else pod


def with_demand(shape: Shape, facts: tuple[ImageFacts, ...]) -> Shape:
    """Return a shape with the joint demand of its images; this demand is None if the shape selects another OS."""
    demand = None if dict(shape.node_selector).get("kubernetes.io/os", "linux") != "linux" else demand_of(facts)
    isa = msgspec.structs.replace(shape.isa or IsaDemand(), images=demand)
    return msgspec.structs.replace(shape, isa=isa if isa.is_stated or isa.images else None)


def demand_of(facts: tuple[ImageFacts, ...]) -> ImageDemand | None:
    """Return the joint demand of a pod's images, or None if there are no facts."""
    if not facts:
        return None
    known = [_floors(fact.platforms) for fact in facts if fact.platforms]
    floors = tuple(sorted(pod_floors(known).items())) if known else None
    written = None if floors is None else tuple((arch, isa.canonical if isa else "") for arch, isa in floors)
    only = tuple((arch, fact.image) for fact in facts for arch in archs_with_variants_only(fact.platforms))
    return ImageDemand(written, unknown=len(known) < len(facts), variants_only=only)


def stated_facts(
    annotations: Mapping[str, str], images: tuple[str, ...], problems: list[Problem]
) -> tuple[ImageFacts, ...]:
    """Read the image facts in a pod's annotation."""
    if IMAGE_PLATFORMS not in annotations:
        return ()
    try:
        stated = read_json(annotations[IMAGE_PLATFORMS])
        if not isinstance(stated, dict):
            raise InputError(
                "ImagePlatformsInvalid", "the value must be a JSON object that maps images to lists of platforms"
            )
        return tuple(_stated(image, stated[image]) for image in images if image in stated)
    except JSONDecodeError as error:
        message = Message("the text is not valid JSON: {text}", text=error.msg)
        problems.append(Problem("ImagePlatformsInvalid", IMAGE_PLATFORMS, message))
    except InputError as error:
        problems.append(Problem(error.code, IMAGE_PLATFORMS, error.message))
    return ()


def _stated(image: str, value: object) -> ImageFacts:
    if isinstance(value, str) and 0 < len(value) <= 1000:
        return ImageFacts(image, unknown=as_message(value))
    if not isinstance(value, list) or len(value) > MOST_PLATFORMS or not all(isinstance(item, str) for item in value):
        raise InputError(
            "ImagePlatformsInvalid",
            Message(
                "{image}: the value must be a list of platforms, or the reason why they are unknown",
                image=repr(image[:80]),
            ),
        )
    for platform in value:
        normalise(platform)
    return ImageFacts(image, tuple(value), unknown=Message("" if value else NO_PLATFORM))


def _better(read: ImageFacts | None, stated: ImageFacts | None) -> ImageFacts | None:
    """Return the facts read from a registry, else the previous facts, else the reason why the facts are unknown."""
    if read is not None and (not read.unknown or stated is None or stated.unknown):
        return read
    return stated


def _floors(platforms: tuple[str, ...]) -> dict[str, Isa | None]:
    floors = image_floors(platforms)
    for arch, older in OLDER.items():
        if older in floors:
            floors[arch] = floor(arch)
    return floors
