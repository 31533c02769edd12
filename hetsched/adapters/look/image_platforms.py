"""Platforms of the images of a cluster's pods, read from registries that the user allows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from hetsched.adapters.oci.facts import NO_PLATFORM, with_facts
from hetsched.adapters.oci.reference import parse_reference
from hetsched.adapters.oci.registry import look_up
from hetsched.adapters.oci.wire import AllowedHosts, ImageUnreadable
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, as_message
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.workload import ImageFacts

_THREADS = 8


def with_image_platforms(content: ClusterContent, allowed: AllowedHosts) -> ClusterContent:
    """Return the content with the platforms of all images from the allowed registries, read without credentials."""
    images = sorted({image for pod in (*content.running, *content.pending) for image in pod.images})
    with ThreadPoolExecutor(_THREADS) as threads:
        known = {facts.image: facts for facts in threads.map(partial(_facts, allowed), images)}
    return msgspec.structs.replace(
        content,
        running=tuple(with_facts(pod, known) for pod in content.running),
        pending=tuple(with_facts(pod, known) for pod in content.pending),
    )


def _facts(allowed: AllowedHosts, image: str) -> ImageFacts:
    try:
        platforms = look_up(parse_reference(image), allowed).platforms
    except InputError as error:
        return ImageFacts(image, unknown=error.message)
    except ImageUnreadable as error:
        return ImageFacts(image, unknown=as_message(error.message))
    return ImageFacts(image, tuple(platforms), unknown=Message("" if platforms else NO_PLATFORM))
