"""Checkpoint of the kubelet's memory manager: its policy, the assignable memory of each NUMA node, and assigned memory.

The amounts in the checkpoint exclude `reservedMemory` of the configuration and, for plain memory, the huge pages.
Source: kubernetes pkg/kubelet/cm/memorymanager/state (1.36).
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec

from hetsched.contracts.messages.agent_report import MemoryBlock
from hetsched.contracts.objects.pinned_memory import STATIC

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Zone = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class MemoryManagerState(NamedTuple):
    """Content of the checkpoint; `assignable` is None unless the policy is static."""

    policy: str
    assignable: dict[str, dict[str, int]] | None = None
    blocks: dict[str, dict[str, tuple[MemoryBlock, ...]]] = {}


class _MemoryAmounts(msgspec.Struct):
    allocatable: _Size = 0


class _NodeMemory(msgspec.Struct, rename="camel"):
    memory_map: dict[str, _MemoryAmounts] = {}


class _Block(msgspec.Struct):
    zones: tuple[_Zone, ...] = msgspec.field(name="numaAffinity")
    type: str
    size: _Size


class _Checkpoint(msgspec.Struct, rename="camel"):
    policy_name: str
    machine_state: dict[_Zone, _NodeMemory] | None = None
    entries: dict[str, dict[str, tuple[_Block, ...]]] | None = None


def parse_memory_state(text: str) -> MemoryManagerState:
    """Parse a checkpoint. Raises: ValueError if it is not a checkpoint of the memory manager."""
    try:
        found = msgspec.json.decode(text, type=_Checkpoint)
    except RecursionError:
        raise ValueError("the file is nested too deeply") from None
    if found.policy_name != STATIC or not found.machine_state:
        return MemoryManagerState(found.policy_name)
    assignable = {
        str(zone): {kind: table.allocatable for kind, table in node.memory_map.items()}
        for zone, node in sorted(found.machine_state.items())
    }
    blocks = {
        uid: {
            name: tuple(MemoryBlock(one.zones, one.type, one.size) for one in assigned)
            for name, assigned in containers.items()
        }
        for uid, containers in (found.entries or {}).items()
    }
    return MemoryManagerState(found.policy_name, assignable, blocks)
