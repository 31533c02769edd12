"""Limits of one submitter, in addition to its permissions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import InputError
from ..message import Message
from ..units import format_amount, parse_amount

PODS = "pods"
GPU_MILLI = "hetsched.io/gpu-milli"
_MOST_NAMES = 32


class Allowance(msgspec.Struct, frozen=True):
    """Limits of one submitter.

    `most` maps each limited resource to the maximum total request of the submitter's unfinished workloads, in the units
    of `parse_amount`.

    The resource `pods` counts pods, and `hetsched.io/gpu-milli` counts thousandths of GPUs. `priority` is the maximum
    priority of the submitter's pods. The submitter may use only `namespaces`; None allows all namespaces.
    """

    most: dict[str, int] = {}
    priority: int | None = None
    namespaces: frozenset[str] | None = None


UNLIMITED = Allowance()


def read_quota(given: Any) -> dict[str, str]:
    """Validate a quota in the form of a Kubernetes resource list, and return it in the stored form.

    Raises: InputError `QuotaInvalid`.
    """
    if not isinstance(given, Mapping) or len(given) > _MOST_NAMES:
        raise InputError(
            "QuotaInvalid",
            Message("the value must be an object with at most {n} resources", n=_MOST_NAMES),
            place="quota",
            hint=_HINT,
        )
    return {str(name): format_amount(str(name), _amount(name, text)) for name, text in sorted(given.items())}


_HINT = 'Write {"pods": "20", "cpu": "64", "memory": "256Gi", "hetsched.io/gpu-milli": "4000"}'


def _amount(name: Any, text: Any) -> int:
    if not isinstance(name, str) or not 0 < len(name) <= 253 or not name.isascii() or not name.isprintable():
        raise InputError(
            "QuotaInvalid",
            Message("{text} is not a valid resource name", text=repr(str(name)[:80])),
            place="quota",
            hint=_HINT,
        )
    try:
        return parse_amount(name, text)
    except InputError as error:
        raise InputError("QuotaInvalid", error.message, place=f"quota.{name}", hint=_HINT) from None


def amounts(quota: Mapping[str, str]) -> dict[str, int]:
    """Convert a stored quota to integer amounts by resource (see `parse_amount`)."""
    return {name: parse_amount(name, text) for name, text in quota.items()}
