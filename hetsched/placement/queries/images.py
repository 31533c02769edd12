"""Facts about the images of pods, as shown to users.

They combine the facts used in decisions with the latest read from the registry: the image's digest, the time of the
read, and the error if the read failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache

import msgspec

from hetsched.adapters.oci.reference import parse_reference
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.workload import ImageFacts, PodSpec
from hetsched.inventory.models import Cluster, ImageIndex
from hetsched.isa.platforms import image_warnings


class ImageDetail(msgspec.Struct, frozen=True, rename="camel"):
    """One image: its platforms, or the reason why they are unknown.

    `failure` is the error of the last read of the image index. `warnings` names nodes on which the image can run, but
    whose unmodified container runtime rejects it.
    """

    image: str
    platforms: list[str]
    unknown: str | None
    digest: str | None = None
    read_at: datetime | None = None
    failure: str | None = None
    warnings: list[str] = []


def images_of(cluster: Cluster, pods: Sequence[PodSpec]) -> list[ImageDetail]:
    """Return the images of these pods for which facts are known, sorted by name."""
    facts = {image.image: image for pod in pods for image in pod.image_facts}
    if not facts:
        return []
    references = {image: stored_reference(image) for image in facts}
    rows = ImageIndex.objects.filter(cluster=cluster, reference__in=set(references.values()))
    read = {row.reference: row for row in rows}
    return [_detail(facts[image], read.get(references[image])) for image in sorted(facts)]


def _detail(facts: ImageFacts, row: ImageIndex | None) -> ImageDetail:
    return ImageDetail(
        image=facts.image,
        platforms=list(facts.platforms),
        unknown=facts.unknown or None,
        digest=(row.digest or None) if row else None,
        read_at=row.read_at if row else None,
        failure=(row.message or None) if row else None,
        warnings=image_warnings(facts.platforms),
    )


@lru_cache(maxsize=65536)
def stored_reference(image: str) -> str:
    """Return the reference under which an image is stored, or an empty string if it is invalid."""
    try:
        return str(parse_reference(image))
    except InputError:
        return ""
