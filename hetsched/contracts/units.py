"""Kubernetes quantities as exact integers.

"500m", "2Gi" and "1e3" must add up without rounding errors, so that a node is not allocated beyond its capacity. A
quantity is a decimal number with one suffix (n u m, none, k M G T P E, Ki Mi Gi Ti Pi Ei, or an exponent). CPU is
stored in millicores and every other resource in its base unit (bytes, GPUs, Mbit/s). Fractions of the unit are rounded
up, as in Kubernetes.
Source: Kubernetes API conventions, resource.Quantity.
Invariants: `format_amount(r, parse_amount(r, q))` parses back to the same integer; every accepted value fits into
int64.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache

from .errors import InputError
from .message import Message

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"
EPHEMERAL_STORAGE = "ephemeral-storage"
NETWORK_MBPS = "hetsched.io/network-mbps"
DISK_MBPS = "hetsched.io/disk-mbps"
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")

MIB = 1024 * 1024
INT64_MAX = 2**63 - 1

_SUFFIX_FACTOR = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9),
    "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30),
    "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
_GRAMMAR = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)
_FORM = Message("Use a number with an optional suffix, such as 500m, 2, 1.5 or 4Gi")
# A quantity has at most 64 characters, so this precision suffices for exact products.
_EXACT = Context(prec=200)


@lru_cache(maxsize=65536)
def parse_quantity(text: str) -> Decimal:
    """Parse a Kubernetes quantity exactly.

    Raises: InputError `QuantityMalformed` or `QuantityTooLarge`.
    """
    match = _GRAMMAR.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        raise InputError(
            "QuantityMalformed",
            Message("{text} is not a valid quantity", text=repr(text[:80])),
            hint=_FORM,
        )
    number, exponent, suffix = match.groups()
    try:
        value = _EXACT.multiply(Decimal(number + (exponent or "")), _SUFFIX_FACTOR[suffix or ""])
    except InvalidOperation:
        message = Message("{text} is not a valid quantity", text=repr(text[:80]))
        raise InputError("QuantityMalformed", message, hint=_FORM) from None
    if abs(value) > INT64_MAX // 1000:
        hint = Message("Largest allowed value: {high}", high=INT64_MAX // 1000)
        raise InputError("QuantityTooLarge", Message("{text} is too large", text=repr(text)), hint=hint)
    return value


def _as_text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        message = Message("{text} is not a valid quantity", text=repr(value)[:80])
        raise InputError("QuantityMalformed", message, hint=_FORM)
    return value if isinstance(value, str) else repr(value)


@lru_cache(maxsize=65536)
def _amount(resource: str, text: str) -> int:
    value = parse_quantity(text)
    if value < 0:
        raise InputError(
            "QuantityNegative",
            Message("{resource} must not be negative, but is {value}", resource=resource, value=repr(text)),
            hint="Use 0 or a positive quantity",
        )
    exact = _EXACT.multiply(value, Decimal(1000)) if resource == CPU else value
    whole = int(exact)
    if whole != exact:
        if is_extended(resource):
            raise InputError(
                "QuantityNotInteger",
                Message("{resource} must be a whole number, not {value}", resource=resource, value=repr(text)),
                hint=Message("Use a whole number, such as {n}", n=whole + 1),
            )
        whole += 1
    return whole


def parse_amount(resource: str, value: object) -> int:
    """Return the amount of `resource` as an integer: millicores for cpu, base units for all others.

    Raises: InputError `QuantityMalformed`, `QuantityNegative`, `QuantityTooLarge`, or `QuantityNotInteger` for an
    extended resource that is not a whole number.
    """
    return _amount(resource, _as_text(value))


def is_extended(resource: str) -> bool:
    """Return whether `resource` is an extended resource, which Kubernetes counts only in whole units."""
    return "/" in resource and resource.split("/", 1)[0] not in ("kubernetes.io",)


def format_amount(resource: str, amount: int) -> str:
    """Return an integer amount as the shortest exact quantity."""
    if resource == CPU:
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    if resource in (MEMORY, EPHEMERAL_STORAGE) or resource.startswith("hugepages-"):
        for suffix, factor in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
            if amount and amount % factor == 0:
                return f"{amount // factor}{suffix}"
    return str(amount)


def readable_amount(resource: str, amount: int) -> str:
    """Format an amount for display: CPU above one core in cores (`39.9` for 39900m), other amounts as quantities."""
    if resource == CPU and amount > 1000:
        return f"{amount / 1000:.3f}".rstrip("0").rstrip(".")
    return format_amount(resource, amount)


def mib_rounded_up(amount_bytes: int) -> int:
    """Convert `amount_bytes` to MiB, rounded up."""
    return -(-amount_bytes // MIB)
