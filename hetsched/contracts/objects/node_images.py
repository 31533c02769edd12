"""Sizes of the images on a node in a compact form.

A kubelet reports up to 50 images, each with up to five names of often more than 70 characters. Only names that a pod
states are looked up, so a node stores a 64-bit hash of each name and the size: 1.6 KB for 50 images with a tag and a
digest, where the names alone need about 8 KB. With 500,000 names in a cluster, two of them have the same hash with a
probability of 1 in 100 million.
Format: 16 bytes for each name, ordered by hash: the hash (unsigned) and the size in bytes (signed), little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b

ENTRY = struct.Struct("<Qq")


def image_name(image: str) -> str:
    """Return the name of an image with its tag; the default is `latest`. Source: CRI, `normalizedImageName`."""
    return image if image.rfind(":") > image.rfind("/") else f"{image}:latest"


def image_key(name: str) -> int:
    """Return the 64-bit hash of a name of an image."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def pack_images(sizes: Mapping[str, int]) -> bytes:
    """Return the compact form of sizes in bytes by name."""
    return pack_keys((image_key(name), size) for name, size in sizes.items())


def pack_keys(sizes: Iterable[tuple[int, int]]) -> bytes:
    """Return the compact form of pairs of a hash and a size in bytes."""
    return b"".join(ENTRY.pack(key, size) for key, size in sorted(dict(sizes).items()))


def unpack_keys(packed: bytes) -> Iterator[tuple[int, int]]:
    """Yield the pairs of a hash and a size in bytes. Raises: struct.error if the length is not a multiple of 16."""
    yield from ENTRY.iter_unpack(packed)
