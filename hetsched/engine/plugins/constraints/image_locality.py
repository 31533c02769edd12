"""Prefer nodes that already have the images of the pod.

Rule: the sum of floor(size * nodes with the image / nodes) over the pod's images on the node, limited to the range from
23 MiB to 1,000 MiB for each image of the pod; the score is the position in this range, 0 to 100, rounded down. The
factor keeps pods from gathering on the few nodes that have an image. Images are those of containers, init containers
and image volumes.
Source: kube-scheduler's ImageLocality plugin of Kubernetes 1.37. Earlier versions do not count image volumes in the
upper limit.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from hetsched.contracts.objects.node_images import ENTRY, image_key
from hetsched.contracts.objects.workload import Shape
from hetsched.engine.cluster.columns import Floats, Ints, Rows, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.extension_points import Reads
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Skip

_MIB = 1024 * 1024
_LEAST = 23 * _MIB
_MOST = 1000 * _MIB
_SCORES: StateKey[Floats] = StateKey("image-locality")
_ENTRY = np.dtype([("key", "<u8"), ("size", "<i8")])


class _NodeImages(NamedTuple):
    """The images on all nodes: (M,) hashes of names, sizes in bytes, and rows of nodes."""

    keys: np.ndarray[tuple[int], np.dtype[np.uint64]]
    sizes: Ints
    rows: Rows


@plugin("image-locality", summary="Prefer nodes that have the pod's images.", reads=Reads.STATIC)
class ImageLocality:
    def handles(self, shape: Shape) -> bool:
        return bool(shape.images)

    def static_key(self, request: Request) -> Hashable:
        return request.shape.images

    def pre_score(self, request: Request, state: ClusterState) -> None | Skip:
        images = request.shape.images
        sums = sum((_weighted_sizes(name, state) for name in images), start=np.int64(0))
        if not np.any(sums):
            return SKIP
        most = _MOST * len(images)
        request.memo[_SCORES] = (100 * (np.clip(sums, _LEAST, most) - _LEAST) // (most - _LEAST)).astype(np.float64)
        return None

    def score(self, request: Request, nodes: Window) -> Floats:
        scores: Floats = nodes.pick(request.memo[_SCORES])
        return scores


def _weighted_sizes(name: str, state: ClusterState) -> Ints:
    """Return the (N,) sizes of an image, weighted by the share of nodes that have it; 0 on nodes without it."""

    def weighted() -> Ints:
        images = state.once(_SCORES, lambda: _images(state))
        at = np.flatnonzero(images.keys == image_key(name))
        sizes = np.zeros(len(state.reports), np.int64)
        sizes[images.rows[at]] = images.sizes[at] * (len(at) / max(len(sizes), 1))
        return sizes

    return state.once((_SCORES, name), weighted)


def _images(state: ClusterState) -> _NodeImages:
    packed = [report.image_sizes for report in state.reports]
    entries = np.frombuffer(b"".join(packed), _ENTRY)
    rows = np.repeat(np.arange(len(packed)), [len(each) // ENTRY.size for each in packed])
    return _NodeImages(entries["key"].copy(), entries["size"].copy(), rows)
