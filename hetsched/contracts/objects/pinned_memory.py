"""Memory that a kubelet with the static memory manager assigns to containers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..errors import InputError
from ..message import Message
from ..units import MEMORY, format_amount, parse_amount

STATIC = "Static"  # the policy of the memory manager that assigns memory
HUGE_PAGES = "hugepages-"
MOST_KINDS = 16  # kinds of memory of one node; x86 has three, arm64 five


class MemoryGrant(msgspec.Struct, frozen=True, gc=False):
    """Memory of one kind (`memory` or `hugepages-<size>`) that a pod has on `zones` together; `size` is in bytes."""

    zones: tuple[str, ...]
    kind: str
    size: int


def is_memory(resource: str) -> bool:
    """Return whether the memory manager assigns a resource."""
    return resource == MEMORY or resource.startswith(HUGE_PAGES)


def format_kinds(amounts: Mapping[str, int]) -> str:
    """Format bytes by kind as in the kubelet's flag `--reserved-memory`: `memory=1Gi,hugepages-2Mi=512Mi`."""
    return ",".join(f"{kind}={format_amount(kind, size)}" for kind, size in sorted(amounts.items()))


def parse_kinds(text: str) -> dict[str, int]:
    """Parse the format of `format_kinds`. Raises: InputError."""
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        kind, _, amount = part.partition("=")
        if not is_memory(kind) or kind in found or len(found) == MOST_KINDS:
            text = Message("{text} is not a kind of memory with an amount", text=part[:80])
            raise InputError("MemoryMalformed", text, hint=Message("Write memory=1Gi,hugepages-2Mi=512Mi"))
        found[kind] = parse_amount(kind, amount)
    return found
