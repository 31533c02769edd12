"""Write node reports into columns.

Filters read thousands of nodes at once; reports are objects, one per node. A report becomes one column of the
inventory block; names become ids of the state's vocabularies, and missing facts become UNKNOWN. Pods placed on a row
keep their allocation, even if the node's new capacity is too small for them.
Invariants: writing the same report twice changes nothing; free = capacity - allocated, for every GPU and zone.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from hetsched.contracts.objects.cards import cards_in_maintenance, installed_cards
from hetsched.contracts.objects.node_report import (
    CONDITION_TAINTS,
    POWER_STATES,
    GpuCard,
    IsaReport,
    NodeReport,
    Taint,
)
from hetsched.contracts.units import CPU, EPHEMERAL_STORAGE, GPU_RESOURCES, MEMORY, PODS
from hetsched.engine.gpu.links import Table, link_table
from hetsched.engine.numa.topology_setup import Setup, setup_of
from hetsched.engine.numa.zones import Zones

from .columns import UNKNOWN, UNLIMITED, WHOLE_CARD_MILLI, ColumnLayout, Columns, Vocabulary
from .state_view import StateView


class InventoryState(StateView, Protocol):
    """The part of `ClusterState` that holds the facts of the nodes."""

    cards: list[tuple[GpuCard, ...]]
    links: dict[int, Table]
    models: Vocabulary[str]
    offers: Vocabulary[IsaReport]
    setups: Vocabulary[Setup]
    taint_sets: Vocabulary[tuple[Taint, ...]]
    zones: Zones


def resource_names(reports: list[NodeReport]) -> list[str]:
    """Return all resource names; CPU and memory are always rows 0 and 1."""
    names = {name for report in reports for name in report.allocatable} | {PODS, EPHEMERAL_STORAGE, *GPU_RESOURCES}
    return [CPU, MEMORY, *sorted(names - {CPU, MEMORY})]


def write_facts(state: InventoryState, row: int) -> None:
    """Write one node's inventory; of its load, only the fields derived from the facts change."""
    report, field = state.reports[row], state.columns.field
    allocatable = field("allocatable")
    for resource, position in state.resources.index.items():
        allocatable[position, row] = _allocatable(report, resource, state.cards[row])
    field("ready")[row] = report.ready
    field("unschedulable")[row] = report.unschedulable
    field("taint_set")[row] = state.taint_sets.id(report.taints)
    field("isa_offer")[row] = state.offers.id(report.isa)
    field("topology_setup")[row] = state.setups.id(setup_of(report))
    power = report.power
    field("power_state")[:, row] = 1 + POWER_STATES.index(power.state) if power and power.state else 0
    headroom = power.headroom_watts if power else None
    field("power_headroom")[:, row] = UNKNOWN if headroom is None else headroom
    state.zones.release_grants(row, state.columns)
    held_milli = field("card_milli")[:, row] - field("card_milli_free")[:, row]
    held_memory = np.maximum(field("card_memory")[:, row], 0) - field("card_memory_free")[:, row]
    for name in ("card_model", "card_vendor", "card_milli", "card_resting"):
        field(name)[:, row] = 0
    for name in ("card_memory", "card_cores"):
        field(name)[:, row] = UNKNOWN
    for card in (*state.cards[row], *cards_in_maintenance(report)):
        field("card_model")[card.index, row] = state.models.id(card.model or "")
        field("card_vendor")[card.index, row] = state.vendors.id(card.vendor)
        field("card_memory")[card.index, row] = UNKNOWN if card.memory_mib is None else card.memory_mib
        field("card_cores")[card.index, row] = UNKNOWN if card.cores is None else card.cores
        field("card_milli")[card.index, row] = WHOLE_CARD_MILLI if card.healthy else 0
        field("card_resting")[card.index, row] = WHOLE_CARD_MILLI if card.maintenance else 0
    field("cards_healthy")[row] = np.count_nonzero(field("card_milli")[:, row])
    field("cards_present")[row] = installed_cards(report)
    field("card_milli_free")[:, row] = field("card_milli")[:, row] - held_milli
    field("card_memory_free")[:, row] = np.maximum(field("card_memory")[:, row], 0) - held_memory
    state.links.pop(row, None)
    if (links := link_table(state.cards[row])) is not None:
        state.links[row] = links
    state.zones.write(row, report, state.columns)
    for placed in state.on_row[row].values():
        state.zones.charge(placed, 1, state.columns)
    state.zones.charge_unexplained(row, state.columns)


def _allocatable(report: NodeReport, resource: str, cards: tuple[GpuCard, ...]) -> int:
    if resource in GPU_RESOURCES and report.gpus is not None:
        vendor = resource.split(".", 1)[0]
        return sum(card.healthy and card.vendor in (vendor, "") for card in cards)
    # A node that does not state a maximum number of pods has no limit.
    return report.allocatable.get(resource, UNLIMITED if resource == PODS else 0)


def widened(old: Columns, layout: ColumnLayout) -> Columns:
    """Return the columns in a layout with more resources, with amount 0 on every node."""
    wider = Columns(old.names, layout)
    for fields, other in ((layout.static, old.layout.static), (layout.load, old.layout.load)):
        for name in fields:
            rows = old.field(name)
            if isinstance(other[name], slice):
                wider.field(name)[: rows.shape[0]] = rows
            else:
                wider.field(name)[:] = rows
    return wider


def emptied(state: InventoryState) -> Columns:
    """Return the columns as if no pods were placed and all nodes were Ready, uncordoned and without condition taints.

    GPUs in maintenance are available, unhealthy ones are not. Zones have their full allocatable capacity, because the
    use of online workloads may fall. Nodes are powered on, and the headroom of their power supplies is unknown.
    """
    empty = state.columns.copy()
    layout = empty.layout
    for field in ("requested", "nonzero", "used"):
        empty.load[layout.load[field]] = 0
    _end_maintenance(empty, state)
    empty.field("card_milli_free")[:] = empty.field("card_milli")
    empty.field("card_memory_free")[:] = np.maximum(empty.field("card_memory"), 0)
    empty.field("zone_cpu")[:] = empty.field("zone_cpu_free")[:] = empty.field("zone_cpu_allocatable")
    empty.field("zone_memory_free")[:] = np.maximum(empty.field("zone_memory"), 0)
    empty.field("zone_cpus_free")[:] = empty.field("zone_cpus_usable")
    empty.field("kubelet_cpus_free")[:] = empty.field("kubelet_cpus")
    empty.field("zone_devices_free")[:] = empty.field("zone_devices")
    empty.field("static_memory_free")[:] = empty.field("static_memory")
    empty.field("memory_group")[:] = 0
    empty.field("power_state")[:] = 0
    empty.field("power_headroom")[:] = UNKNOWN
    empty.field("ready")[:] = 1
    empty.field("unschedulable")[:] = 0
    stay = [
        state.taint_sets.id(tuple(taint for taint in taints if taint.key not in CONDITION_TAINTS))
        for taints in list(state.taint_sets.values)
    ]
    empty.field("taint_set")[:] = np.array(stay, np.int64)[empty.field("taint_set")] if stay else 0
    return empty


def _end_maintenance(columns: Columns, state: InventoryState) -> None:
    """Make the GPUs in maintenance available."""
    resting = columns.field("card_resting") > 0
    if not resting.any():
        return
    columns.field("card_milli")[:] += columns.field("card_resting")
    columns.field("card_resting")[:] = 0
    columns.field("cards_healthy")[:] = np.count_nonzero(columns.field("card_milli"), axis=0)
    vendors = columns.field("card_vendor")
    for resource in GPU_RESOURCES:
        vendor = state.vendors.index.get(resource.split(".", 1)[0], 0)
        counted = resting & ((vendors == vendor) | (vendors == 0))
        columns.field("allocatable")[state.resources.index[resource]] += counted.sum(axis=0)
