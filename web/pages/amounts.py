"""Format amounts for display: rounded, with a unit. The title attribute contains the exact quantity."""

from __future__ import annotations

from typing import Any

from django.utils.formats import number_format

from hetsched.contracts.times import in_units, whole_seconds
from hetsched.contracts.units import CPU, DISK_MBPS, EPHEMERAL_STORAGE, MEMORY, MIB, NETWORK_MBPS, format_amount

_RATES = {NETWORK_MBPS: "Mbit/s", DISK_MBPS: "MB/s"}
_STEPS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", MIB), ("KiB", 1 << 10))


def amount_words(resource: str, amount: int) -> str:
    """Format an amount that is given in the base unit of the resource: `3.5` CPUs, `31.2 GiB`, `4`."""
    if resource == CPU:
        return _number(amount / 1000, 2)
    if resource in (MEMORY, EPHEMERAL_STORAGE) or resource.startswith("hugepages-"):
        return bytes_words(amount)
    unit = _RATES.get(resource)
    number = number_format(amount, use_l10n=True, force_grouping=True)
    return f"{number} {unit}" if unit else number


def bytes_words(amount: int) -> str:
    for suffix, step in _STEPS:
        if abs(amount) >= step:
            return f"{_number(amount / step, 1)} {suffix}"
    return f"{amount} B"


def mib_words(mib: int | None) -> str | None:
    """Format an amount that is given in MiB; None is returned unchanged, so that a template can show it as unknown."""
    return None if mib is None else bytes_words(mib * MIB)


def percent(ratio: float | None) -> str:
    return "–" if ratio is None else f"{round(ratio * 100)} %"


def duration(seconds: float) -> str:
    """Format a time span with its two largest units, rounded up: `< 1 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 1:
        return "< 1 s" if seconds > 0 else "0 s"
    return in_units(whole_seconds(seconds))


def use(resource: str, whole: int, requested: int) -> dict[str, Any]:
    """Return the table row of a resource: total (`whole`), requested and free amount, and share."""
    ratio = requested / whole if whole else None
    return {
        "name": resource,
        "whole": amount_words(resource, whole),
        "requested": amount_words(resource, requested),
        "free": amount_words(resource, whole - requested),
        "exact": f"{format_amount(resource, requested)} / {format_amount(resource, whole)}",
        "ratio": ratio,
        "percent": percent(ratio),
        "kind": {CPU: "cpu", MEMORY: "memory"}.get(resource, "gpu" if resource.endswith("/gpu") else ""),
    }


def _number(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return number_format(text.rstrip("0").rstrip("."), use_l10n=True, force_grouping=True)
