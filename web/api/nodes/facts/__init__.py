"""Facts of a node, each with its source and time; one module for each kind of fact.

May import: layers F0-F3 (docs/explanation/architecture.md) and the modules of REST documents.
Never: write. A fact that no source reports is null, never 0 and never "no".
"""

from .detail import (
    BalanceFacts,
    CardFacts,
    CardShare,
    DeviceAllocation,
    GpuFacts,
    IsaFacts,
    NodeDetail,
    ResourceUse,
    balance_facts,
    device_allocation,
    gpu_facts,
    isa_facts,
    node_detail,
)
from .fact_conflicts import BackOff, FactConflictDetail, back_offs, conflict_details
from .origin import Origin, origin, quantities, source_of, stated
from .source_reports import AgentFacts, QuarantinedFact, StatedFact, agent_facts, quarantined, stated_fact
from .zones import NumaFacts, PinFacts, ZoneFacts, numa_facts, pins

__all__ = [
    "AgentFacts",
    "BackOff",
    "BalanceFacts",
    "CardFacts",
    "CardShare",
    "DeviceAllocation",
    "FactConflictDetail",
    "GpuFacts",
    "IsaFacts",
    "NodeDetail",
    "NumaFacts",
    "Origin",
    "PinFacts",
    "QuarantinedFact",
    "ResourceUse",
    "StatedFact",
    "ZoneFacts",
    "agent_facts",
    "back_offs",
    "balance_facts",
    "conflict_details",
    "device_allocation",
    "gpu_facts",
    "isa_facts",
    "node_detail",
    "numa_facts",
    "origin",
    "pins",
    "quantities",
    "quarantined",
    "source_of",
    "stated",
    "stated_fact",
]
