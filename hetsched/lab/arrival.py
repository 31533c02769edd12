"""Arrival stream of the openb protocol.

Packing quality cannot be compared with a list of pods that all fit into the cluster, so the published comparison
overloads the cluster. The stream is the shuffled list, followed by pods drawn from the list with replacement, until the
arrived GPU demand reaches `ratio` times the cluster's GPU capacity. If the demand of the list exceeds this ratio, the
shuffled list is truncated.
Source: Weng et al., "Beware of Fragmentation" (USENIX ATC 2023), section 6; `openb_pod_list_*.csv`.
Invariants: the same list, ratio and seed yield the same stream, and names are unique (`-2`, `-3`, ... for repeated
pods).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.cards import cards_of
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.workload import PodSpec, Shape

MAX_RATIO = 10.0
_WHOLE_CARD_MILLI = 1000


def gpu_capacity_milli(nodes: Sequence[NodeReport]) -> int:
    """Return the capacity of all healthy GPUs in thousandths of a GPU."""
    return _WHOLE_CARD_MILLI * sum(card.healthy for node in nodes for card in cards_of(node))


def gpu_demand_milli(shape: Shape) -> int:
    return 0 if shape.gpu is None else shape.gpu.count * shape.gpu.milli


def arrival_stream(pods: Sequence[PodSpec], *, capacity_milli: int, ratio: float, seed: int) -> list[PodSpec]:
    """Return the arriving pods in order of arrival.

    Raises: InputError `ArrivalRatioInvalid` or `ArrivalWithoutGpus`.
    """
    if not 0 < ratio <= MAX_RATIO:
        hint = f"Write a ratio greater than 0 and at most {MAX_RATIO:g}, such as 1.3"
        raise InputError("ArrivalRatioInvalid", f"the ratio {ratio:g} is out of range", hint=hint)
    if not capacity_milli:
        hint = "Omit the ratio, or use nodes with GPUs"
        raise InputError("ArrivalWithoutGpus", "a ratio needs GPU capacity, but the cluster has no GPUs", hint=hint)
    if not any(gpu_demand_milli(pod.shape) for pod in pods):
        hint = "Omit the ratio, or use pods with GPUs"
        raise InputError("ArrivalWithoutGpus", "no pod of the workload asks for a GPU", hint=hint)
    wanted_milli = ratio * capacity_milli
    arrived: list[PodSpec] = []
    arrived_milli = 0
    for pod in _repeated(pods, random.Random(seed)):
        if arrived_milli >= wanted_milli:
            break
        arrived.append(pod)
        arrived_milli += gpu_demand_milli(pod.shape)
    return _renamed(arrived)


def _repeated(pods: Sequence[PodSpec], generator: random.Random) -> Iterator[PodSpec]:
    shuffled = list(pods)
    generator.shuffle(shuffled)
    yield from shuffled
    while True:
        yield generator.choice(pods)


def _renamed(stream: list[PodSpec]) -> list[PodSpec]:
    """Give every repeated pod a unique name, even if the list already contains the suffixed name."""
    taken = {pod.key for pod in stream}
    seen: set[str] = set()
    copies: dict[str, int] = {}
    unique: list[PodSpec] = []
    for pod in stream:
        key = pod.key
        if key in seen:
            copy = pod
            while copy.key in taken:
                copies[key] = copies.get(key, 1) + 1
                copy = msgspec.structs.replace(pod, name=f"{pod.name}-{copies[key]}")
            pod = copy
            taken.add(pod.key)
        seen.add(pod.key)
        unique.append(pod)
    return unique
