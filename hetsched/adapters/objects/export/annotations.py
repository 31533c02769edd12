"""Reader of the annotations in which an export records facts that the exported pod's single container cannot express.

A value that an export cannot have written raises InputError or, for the list of problems, becomes a problem.
"""

from __future__ import annotations

import msgspec

from hetsched.contracts.errors import Problem
from hetsched.contracts.message import Message, from_parts
from hetsched.contracts.objects.devices import ExtendedRequest
from hetsched.contracts.objects.workload import ContainerDemand, Shape
from hetsched.contracts.units import MEMORY

from .. import keys
from ..fields import FieldView


def with_problems(problems: list[Problem], annotations: dict[str, str]) -> tuple[Problem, ...]:
    """Return the problems that the export recorded, and the `problems` of fields for which it recorded none."""
    if keys.EXPORT_PROBLEMS not in annotations:
        return tuple(problems)
    try:
        kept = msgspec.json.decode(annotations[keys.EXPORT_PROBLEMS], type=list[Problem], dec_hook=from_parts)
    except (msgspec.DecodeError, RecursionError) as error:
        message = Message("the value is not a list of problems: {text}", text=str(error))
        kept = [Problem("ExportMalformed", keys.EXPORT_PROBLEMS, message)]
    fields = {problem.field for problem in kept}
    return (*kept, *(problem for problem in problems if problem.field not in fields))


def with_scoring(shape: Shape, annotations: FieldView) -> Shape:
    """Replace the CPU and memory requests used for scoring with those that the export recorded."""
    text = annotations.text(keys.EXPORT_SCORING)
    try:
        cpu, memory = msgspec.json.decode(text, type=tuple[int, int])
    except (msgspec.DecodeError, RecursionError) as error:
        annotations.fail(
            Message("the value is not a list [millicores, bytes]: {text}", text=str(error)), keys.EXPORT_SCORING
        )
    if not (0 <= cpu < 2**53 and 0 <= memory < 2**53):
        annotations.fail(
            Message("the amount of cpu or {resource} is out of range", resource=MEMORY), keys.EXPORT_SCORING
        )
    return msgspec.structs.replace(shape, nonzero_cpu_millis=cpu, nonzero_memory_bytes=memory)


class ExportedContainers(msgspec.Struct):
    """Facts about the containers of a shape that the single container of an export cannot express."""

    guaranteed: bool
    containers: tuple[ContainerDemand, ...]
    names: tuple[str, ...] = ()
    extended: tuple[ExtendedRequest, ...] = ()


def with_containers(shape: Shape, annotations: FieldView) -> tuple[Shape, tuple[str, ...]]:
    """Replace the single container with the containers that the export recorded; also return their names."""
    try:
        exported = msgspec.json.decode(annotations.text(keys.EXPORT_CONTAINERS), type=ExportedContainers)
    except (msgspec.DecodeError, RecursionError) as error:
        annotations.fail(
            Message("the value does not describe containers: {text}", text=str(error)), keys.EXPORT_CONTAINERS
        )
    for container in exported.containers:
        amounts = (container.cpus, container.memory_bytes, container.cards, *dict(container.memory).values())
        if not all(0 <= amount < 2**53 for amount in amounts):
            annotations.fail("an amount is out of range", keys.EXPORT_CONTAINERS)
    if not all(0 < request.count < 2**53 and request.container >= 0 for request in exported.extended):
        annotations.fail("an amount is out of range", keys.EXPORT_CONTAINERS)
    return msgspec.structs.replace(
        shape, containers=exported.containers, guaranteed=exported.guaranteed, extended=exported.extended
    ), exported.names
