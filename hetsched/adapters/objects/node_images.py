"""Reader of the images on a node, and their compact form in the annotation of an export.

The informer store keeps the fields of each node; it replaces the list of images by the annotation.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.node_images import ENTRY, pack_images

from . import keys
from .fields import FieldView

# Kubelets report 50 images by default, the largest first, and at most five names of each.
_MOST_NAMES = 512


def image_sizes(meta: FieldView, status: FieldView) -> bytes:
    """Read the sizes of a node's images from its status, or from the annotation of an export."""
    annotations = meta.view("annotations")
    if "images" in status or keys.EXPORT_IMAGES not in annotations:
        return _sizes(status)
    try:
        packed = b64decode(annotations.text(keys.EXPORT_IMAGES), validate=True)
    except ValueError:
        packed = b" "
    if len(packed) % ENTRY.size:
        annotations.fail("the value does not describe images", keys.EXPORT_IMAGES)
    return packed


def annotation(packed: bytes) -> dict[str, str]:
    """Return the annotation with the sizes of a node's images, or no annotation if it has none."""
    return {keys.EXPORT_IMAGES: b64encode(packed).decode()} if packed else {}


def replace_images(node: Any) -> None:
    """Replace the list of images of a decoded node by the annotation; a malformed node is not changed."""
    try:
        root = FieldView(node)
        meta, status = root.view("metadata"), root.view("status")
        found = annotation(_sizes(status)) if "images" in status else {}
        if found:
            meta.value["annotations"] = {**meta.view("annotations").value, **found}
            del status.value["images"]
    except InputError:
        return


def _sizes(status: FieldView) -> bytes:
    sizes: dict[str, int] = {}
    for image in status.views("images"):
        size = image.integer("sizeBytes", least=-(2**63))
        for name in image.texts("names"):
            if len(sizes) < _MOST_NAMES:
                sizes[name] = max(size, 0)
    return pack_images(sizes)
