"""All wrong fields of a manifest, for an error that lists them together.

The readers of objects stop at the first wrong field. To find the next one, its value is replaced in a copy by one that
the readers accept, and the manifest is read again. The search ends if a field has no such value, for example because
the error is about two fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.workload import PodSpec

from .objects.documents import Document, count_values

MOST_FURTHER = 19  # errors after the first one
MOST_VALUES = 5_000  # values of a manifest, because each wrong field costs up to three reads
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]|\['([^']*)'\]")

Read = Callable[[Sequence[Document]], Sequence[PodSpec]]


def further_errors(error: InputError, documents: Sequence[Document], read: Read) -> tuple[InputError, ...]:
    """Return the errors after `error`, the first one; `read` returns the pods of documents or raises InputError."""
    if sum(count_values(document.object, MOST_VALUES) for document in documents) > MOST_VALUES:
        return ()
    copies = [msgspec.structs.replace(document, object=deepcopy(document.object)) for document in documents]
    found: list[InputError] = []
    current: InputError | None = error
    while current is not None and len(found) < MOST_FURTHER:
        field = _field(current.place, copies)
        if field is None:
            return tuple(found)
        owner, key = field
        for value in (None, f"x{len(found)}", 1):
            owner[key] = value
            following, pods = _outcome(read, copies)
            if following is None or following.place != current.place:
                break
        else:
            return tuple(found)
        if following is None:
            return (*found, *_errors_of_pods(pods, copies))[:MOST_FURTHER]
        found.append(following)
        current = following
    return tuple(found)


def _outcome(read: Read, documents: Sequence[Document]) -> tuple[InputError | None, Sequence[PodSpec]]:
    try:
        return None, read(documents)
    except InputError as error:
        return error, ()


def _errors_of_pods(pods: Sequence[PodSpec], documents: Sequence[Document]) -> Iterator[InputError]:
    """Yield the problems of labels and annotations with the only document or else the pod; those of equal pods once."""
    seen = set()
    for pod in pods:
        for problem in pod.problems:
            if (problem.field, problem.message) not in seen:
                seen.add((problem.field, problem.message))
                error = InputError(problem.code, problem.message, place=problem.field)
                yield documents[0].locate(error) if len(documents) == 1 else error.at(f"{pod.key} ")


def _field(place: str, documents: Sequence[Document]) -> tuple[Any, str | int] | None:
    """Return the mapping or list that contains the field at a place, and its key; None if the place has no field."""
    for document in documents:
        start = document.locate(InputError("", "", place=".")).place.removesuffix(".")
        if place.startswith(start):
            return _entry(document.object, place.removeprefix(start))
    return None


def _entry(value: Any, path: str) -> tuple[Any, str | int] | None:
    steps = list(_STEP.finditer(path))
    keys: list[str | int] = [int(step[2]) if step[2] else step[3] or step[1] for step in steps]
    if not keys or "".join(step[0] for step in steps) != path:
        return None
    for key in keys[:-1]:
        if not _holds(value, key):
            return None
        value = value[key]
    return (value, keys[-1]) if _holds(value, keys[-1]) else None


def _holds(value: Any, key: str | int) -> bool:
    if isinstance(key, int):
        return isinstance(value, list) and key < len(value)
    return isinstance(value, dict) and key in value
