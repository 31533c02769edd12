"""Relaxations of a request: its numbers, and the protocol shared with rules.

A relaxation is one field of the request. `loosest` drops the field completely; if the pod does not fit even then, no
smaller change has to be tried. Resources that every pod uses (CPU, memory, storage, watts) are not dropped but set to
the least amount. For a number, the search finds the fitting value nearest to the requested value. It uses bisection if
a smaller value is never harder to place. Otherwise (CPUs and GPUs that zones and kubelets align) it tries value by
value. The size of a change is the dropped share of a number. For a rule that is dropped or added it is 1/2 (half a
request), because a rule has no natural size.
Units: numbers are in the base units of the request; in pods with several containers the largest ones are reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from hetsched.contracts.documents import encode
from hetsched.contracts.message import Message
from hetsched.contracts.objects.pinned_memory import is_memory
from hetsched.contracts.objects.wishes import (
    EXPECTED_USAGE,
    EXPECTED_WATTS,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MILLI,
    GPU_NUMBER,
)
from hetsched.contracts.objects.workload import ContainerDemand, GpuDemand, Shape
from hetsched.contracts.units import CPU, EPHEMERAL_STORAGE, GPU_RESOURCES, MEMORY, PODS, format_amount, readable_amount
from hetsched.engine.cluster.columns import WHOLE_CARD_MILLI, Rows

RULE_SIZE = 0.5
GPUS = "gpus"  # the GPUs of a container, of any vendor
# Maximum number of values that are tried one by one. Longer ranges are bisected, which finds the nearest fitting value
# only if a smaller value is never harder to place.
_TRIED_ONE_BY_ONE = 64
# Resources that every pod uses. Their requests are not reduced to zero, which would only hide the use.
_NEVER_NONE = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE})

Apply = Callable[[Shape], Shape]
# Function that returns the rows on which a shape fits, among the given rows or all rows (None).
Fits = Callable[[Shape, Rows | None], Rows]


class Step(NamedTuple):
    """One change of one field; `words` describes it in messages, `apply` changes any shape that states the field."""

    field: str
    from_: str
    to: str
    words: Message
    size: float
    apply: Apply


class Relaxation(Protocol):
    """One field of a request that can be relaxed."""

    loosest: Apply

    def steps(self, shape: Shape, fits: Fits, rows: Rows) -> Iterator[Step]:
        """Yield changes of `shape` with which it fits on some node; `rows` are the nodes that fit without the field."""


class Number:
    """Relaxation of a number of the request down to `limit`, or up to it if a larger value is easier to place.

    `show` formats a value for the field, `read` for messages. `even` is true if a smaller value is never harder to
    place. `last` is a value beyond `limit` that means "not requested at all".
    """

    def __init__(
        self,
        field: str,
        name: str,
        put: Callable[[Shape, int], Shape],
        asked: int,
        limit: int,
        *,
        by: int = 1,
        even: bool = True,
        last: int | None = None,
        show: Callable[[int], str] = str,
        read: Callable[[int], str] | None = None,
        unit: str = "",
    ) -> None:
        self.field, self.name, self.unit = field, name, unit
        self._put, self._show, self._read = put, show, read or show
        self._asked, self._last, self._even = asked, last, even
        self._by = by if limit > asked else -by
        self._count = abs(limit - asked) // by
        self.loosest: Apply = partial(self._set, value=limit if last is None else last)

    def _set(self, shape: Shape, value: int) -> Shape:
        return self._put(shape, value)

    def steps(self, shape: Shape, fits: Fits, rows: Rows) -> Iterator[Step]:
        values = range(self._asked + self._by, self._asked + self._by * (self._count + 1), self._by)
        if self._even or len(values) > _TRIED_ONE_BY_ONE:
            found = self._halve(shape, fits, values, rows)
        else:
            found = next((value for value in values if fits(self._put(shape, value), None).size), None)
        if found is None and self._last is not None and fits(self._put(shape, self._last), rows).size:
            found = self._last
        if found is not None:
            yield self._step(found)

    def _halve(self, shape: Shape, fits: Fits, values: Sequence[int], rows: Rows) -> int | None:
        """Return the first of `values` that fits, by bisection, or None; all values after it must fit, too."""
        if not values or not fits(self._put(shape, values[-1]), rows).size:
            return None
        low, high = 0, len(values) - 1
        while low < high:
            middle = (low + high) // 2
            if fits(self._put(shape, values[middle]), rows).size:
                high = middle
            else:
                low = middle + 1
        return values[low]

    def _step(self, value: int) -> Step:
        asked, becomes = self._show(self._asked), self._show(value)
        was, now = self._read(self._asked), f"{self._read(value)}{self.unit}"
        words = Message("{field} {was} -> {now}", field=self.name, was=was, now=now)
        size = abs(value - self._asked) / max(self._asked, 1)
        return Step(self.field, asked, becomes, words, size, partial(self._set, value=value))


# -- the numbers of a shape ------------------------------------------------------------------------------------------


def numbers(shape: Shape, *, zoned: bool, declared: bool = True) -> Iterator[Relaxation]:
    """Yield a relaxation for each number in the requests of a shape, for example its CPU or its number of GPUs.

    `zoned` is true if a node's zones or kubelet may require whole CPUs, `declared` if the pod itself declares its
    expected use.
    """
    pins = shape.numa is not None and shape.numa.cpu_policy != "none"
    whole = (zoned or pins) and any(container.cpus for container in shape.containers)
    for resource, asked in shape.requests:
        if asked and resource != PODS and resource not in GPU_RESOURCES:
            by_cpu = whole and resource == CPU
            least = int(resource in _NEVER_NONE)
            yield Number(
                f"resources.requests.{resource}",
                resource,
                partial(_with_request, resource=resource),
                asked,
                asked % 1000 or min(asked, 1000) if by_cpu else least,
                by=1000 if by_cpu else 1,
                even=not by_cpu,
                show=partial(format_amount, resource),
                read=partial(readable_amount, resource),
            )
    for resource, expected in shape.expected_usage if declared else ():
        put = partial(_with_expected, resource=resource)
        show = partial(_usage_text, shape, resource)
        yield Number(
            EXPECTED_USAGE, Message("expected use of {resource}", resource=resource), put, expected, 1, show=show
        )
    if shape.gpu is not None:
        yield from _card_numbers(shape.gpu, zoned=zoned)
    if shape.expected_watts:
        yield Number(EXPECTED_WATTS, "expected-watts", _with_watts, shape.expected_watts, 1, unit=" W")
    for position, constraint in enumerate(shape.spread):
        if constraint.hard:
            field = f"spec.topologySpreadConstraints[{position}].maxSkew"
            put = partial(_with_skew, position=position)
            name = Message("maxSkew over {key}", key=constraint.topology_key)
            yield Number(field, name, put, constraint.max_skew, _MOST_SKEW)


_MOST_SKEW = 2**20


def _card_numbers(gpu: GpuDemand, *, zoned: bool) -> Iterator[Relaxation]:
    resource = f"{gpu.vendor}.com/gpu"
    field = f"resources.limits.{resource}" if resource in GPU_RESOURCES else GPU_NUMBER[0]
    if gpu.count > 1:
        yield Number(field, "gpu-number", _with_cards, gpu.count, 1, even=not zoned)
    if gpu.count == 1 and gpu.milli > 1:
        yield Number(GPU_MILLI, "gpu-milli", partial(_with_gpu, fact="milli"), min(gpu.milli, WHOLE_CARD_MILLI), 1)
    for key, fact, asked, unit in (
        (GPU_MEMORY, "memory_mib", gpu.memory_mib, " MiB"),
        (GPU_CORE, "cores", gpu.cores, ""),
    ):
        if asked:
            name = key.rpartition("/")[2]
            # A value of 0 means that no amount is requested; a share of a GPU then gets a proportional part.
            yield Number(key, name, partial(_with_gpu, fact=fact), asked, 1, last=0, unit=unit)


def _with_gpu(shape: Shape, value: int, *, fact: str) -> Shape:
    assert shape.gpu is not None
    return msgspec.structs.replace(shape, gpu=msgspec.structs.replace(shape.gpu, **{fact: value}))


def _with_expected(shape: Shape, value: int, *, resource: str) -> Shape:
    usage = tuple((name, value if name == resource else amount) for name, amount in shape.expected_usage)
    return msgspec.structs.replace(shape, expected_usage=usage)


def _usage_text(shape: Shape, resource: str, value: int) -> str:
    usage = _with_expected(shape, value, resource=resource).expected_usage
    return encode({name: format_amount(name, amount) for name, amount in usage}).decode()


def _with_watts(shape: Shape, value: int) -> Shape:
    return msgspec.structs.replace(shape, expected_watts=value)


def _with_cards(shape: Shape, value: int) -> Shape:
    assert shape.gpu is not None
    fewer = shape.gpu.count - value
    requests = tuple((r, value if r in GPU_RESOURCES and amount else amount) for r, amount in shape.requests)
    return msgspec.structs.replace(
        shape,
        gpu=msgspec.structs.replace(shape.gpu, count=value),
        requests=requests,
        containers=_reduced_containers(shape.containers, GPUS, fewer),
    )


def _with_request(shape: Shape, value: int, *, resource: str) -> Shape:
    asked = shape.request(resource)
    changes: dict[str, object] = {
        "requests": tuple(
            (r, value if r == resource else amount) for r, amount in shape.requests if r != resource or value
        )
    }
    if resource == CPU:
        changes["nonzero_cpu_millis"] = max(shape.nonzero_cpu_millis - asked + value, 0)
        less = -(-(asked - value) // 1000)
        containers = _reduced_containers(shape.containers, CPU, less)
        changes["containers"] = containers
        changes["guaranteed"] = shape.guaranteed and any(container.cpus for container in containers)
    elif resource == MEMORY:
        changes["nonzero_memory_bytes"] = max(shape.nonzero_memory_bytes - asked + value, 0)
    if is_memory(resource):
        changes["containers"] = _reduced_containers(shape.containers, resource, asked - value)
    return msgspec.structs.replace(shape, **changes)


def _amount_of(container: ContainerDemand, resource: str) -> int:
    """Return a container's CPUs (`cpu`), GPUs (`GPUS`), or bytes of a kind of memory."""
    if resource in (CPU, GPUS):
        return container.cpus if resource == CPU else container.cards
    return container.memory_bytes if resource == MEMORY else dict(container.memory).get(resource, 0)


def _with_amount(container: ContainerDemand, resource: str, amount: int) -> ContainerDemand:
    if resource in (CPU, GPUS):
        return msgspec.structs.replace(container, **{"cpus" if resource == CPU else "cards": amount})
    memory = {kind: amount if kind == resource else size for kind, size in container.memory}
    return msgspec.structs.replace(
        container,
        memory=tuple((kind, size) for kind, size in memory.items() if size),
        memory_bytes=amount if resource == MEMORY else container.memory_bytes,
    )


def _reduced_containers(
    containers: tuple[ContainerDemand, ...], resource: str, less: int
) -> tuple[ContainerDemand, ...]:
    """Subtract `less` from the containers' amounts of a resource (see `_amount_of`), the largest first.

    Containers without requests are omitted. Each init container is reduced by up to `less` on its own, because init
    containers do not run together.
    """
    left = {position: less for position in range(len(containers)) if containers[position].init}
    remaining = less
    order = sorted(range(len(containers)), key=lambda position: -_amount_of(containers[position], resource))
    changed = list(containers)
    for position in order:
        held = _amount_of(containers[position], resource)
        taken = min(held, left.get(position, remaining))
        if position not in left:
            remaining -= taken
        changed[position] = _with_amount(containers[position], resource, held - taken)
    return tuple(one for one in changed if one.cpus or one.cards or one.devices or one.memory)


def _with_skew(shape: Shape, value: int, *, position: int) -> Shape:
    spread = list(shape.spread)
    spread[position] = msgspec.structs.replace(spread[position], max_skew=value)
    return msgspec.structs.replace(shape, spread=tuple(spread))
