"""Find the GPUs of a machine on its PCI bus, and read facts from their kernel drivers in sysfs and procfs.

A GPU is a PCI device of class display or processing accelerator whose vendor makes accelerators. Display chips of
server boards are ignored. They are recognised by their vendor or, if the vendor also makes accelerators, by their
class. AMD's driver publishes memory, identity and name in the folder of the PCI device. It publishes shaders, clock and
links in kfd's topology, in which a GPU is found by its bus address. NVIDIA's driver publishes name and identity in
procfs. Without a driver, only the presence of a GPU is known.
Source: Linux Documentation/ABI/testing/sysfs-bus-pci and Documentation/gpu/amdgpu; names and units of the properties in
drivers/gpu/drm/amd/amdkfd/kfd_topology.c; PCI Code and ID Assignment Specification.
"""

from __future__ import annotations

import re

import msgspec

from ..tree import Tree
from .readings import CardReading

DEVICES = "sys/bus/pci/devices"
_KFD = "sys/class/kfd/kfd"
_CLASSES = frozenset({0x0300, 0x0302, 0x0380, 0x1200})
_VENDORS = {0x10DE: "nvidia", 0x1002: "amd", 0x1DA3: "intel", 0x19E5: "huawei"}
_ACCELERATORS_ONLY = frozenset({0x1DA3, 0x19E5})  # display devices of these vendors are not accelerators
_MIB = 1024 * 1024
_LANES_PER_UNIT = 64
_XGMI = 11
_MAX_NODES = 1024
_HEX = re.compile(r"0x([0-9a-fA-F]{1,8})", re.ASCII)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


class _Kfd(msgspec.Struct):
    """GPU node of kfd's topology."""

    place: int
    facts: dict[str, int]
    gpu_id: int | None
    links: dict[int, int]


def read_pci(tree: Tree) -> list[CardReading]:
    """Return the GPUs on the bus in the order of their addresses, with the facts from their drivers' files."""
    found: list[CardReading] = []
    for name in tree.names(DEVICES):
        if not _ADDRESS.fullmatch(name):
            continue
        kind, vendor = _hex(tree, f"{DEVICES}/{name}/class"), _hex(tree, f"{DEVICES}/{name}/vendor")
        if kind is None or vendor not in _VENDORS or kind >> 8 not in _CLASSES:
            continue
        if vendor in _ACCELERATORS_ONLY and kind >> 8 != 0x1200:
            continue
        found.append(CardReading(vendor=_VENDORS[vendor], pci_address=name))
    nodes = _kfd_nodes(tree) if any(card.vendor == "amd" for card in found) else {}
    by_place = {node.place: address for address, node in nodes.items()}
    for card in found:
        if card.vendor == "amd":
            _amd(tree, card, nodes.get(card.pci_address or ""), by_place)
        elif card.vendor == "nvidia":
            _nvidia(tree, card)
    return found


def kernel_driver_of(tree: Tree, address: str) -> str | None:
    """Return the name of a device's kernel driver, or None if it has none."""
    return tree.link_name(f"{DEVICES}/{address}/driver")


def _nvidia(tree: Tree, card: CardReading) -> None:
    """Add the facts that NVIDIA's driver publishes in procfs."""
    text = tree.text(f"proc/driver/nvidia/gpus/{card.pci_address}/information")
    for line in (text or "").splitlines():
        name, _, value = line.partition(":")
        value = value.strip()
        if name == "Model" and value:
            card.model = value[:120]
        elif name == "GPU UUID" and value.startswith("GPU-") and "?" not in value:
            card.uuid = value[:120]
        elif name == "Device Minor" and value.isascii() and value.isdigit() and len(value) < 5:
            card.minor = int(value)


def _amd(tree: Tree, card: CardReading, node: _Kfd | None, by_place: dict[int, str]) -> None:
    """Add the facts that AMD's driver publishes."""
    here = f"{DEVICES}/{card.pci_address}"
    memory = tree.number(f"{here}/mem_info_vram_total")
    identity = tree.text(f"{here}/unique_id")
    card.uuid = f"GPU-{identity.lower()[:40]}" if identity else None
    card.model = (tree.text(f"{here}/product_name") or "")[:120] or None
    card.memory_mib = None if memory is None or memory < 0 else memory // _MIB
    card.healthy = True if card.memory_mib is not None else None
    if card.memory_mib is not None:
        card.mig_devices = ()  # AMD's GPUs have no MIG instances
    if node is None:
        return
    facts = node.facts
    units = facts.get("simd_count", 0) // max(facts.get("simd_per_cu", 4), 1)
    card.cores = units * _LANES_PER_UNIT or None
    card.clock_mhz = facts.get("max_engine_clk_fcompute") or None
    card.minor = facts.get("drm_render_minor") or None
    card.peers = {by_place[to]: mbs / 1000 or None for to, mbs in node.links.items() if to in by_place}
    if node.gpu_id is not None and tree.exists(f"{_KFD}/proc"):
        users = tree.names(f"{_KFD}/proc")
        card.processes = sum(tree.exists(f"{_KFD}/proc/{user}/vram_{node.gpu_id}") for user in users)


def _kfd_nodes(tree: Tree) -> dict[str, _Kfd]:
    """Return the GPU nodes of kfd's topology, by PCI address."""
    found: dict[str, _Kfd] = {}
    nodes = f"{_KFD}/topology/nodes"
    places = [name for name in tree.names(nodes) if name.isascii() and name.isdigit() and len(name) < 6]
    for name in places[:_MAX_NODES]:
        facts = _properties(tree, f"{nodes}/{name}/properties")
        if not facts.get("simd_count") or facts.get("cpu_cores_count"):
            continue
        location = facts.get("location_id", 0)
        address = f"{facts.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
        links = {}
        for link in tree.names(f"{nodes}/{name}/io_links"):
            link_facts = _properties(tree, f"{nodes}/{name}/io_links/{link}/properties")
            if link_facts.get("type") == _XGMI and "node_to" in link_facts:
                links[link_facts["node_to"]] = link_facts.get("max_bandwidth", 0)
        found[address] = _Kfd(int(name), facts, tree.number(f"{nodes}/{name}/gpu_id"), links)
    return found


def _properties(tree: Tree, path: str) -> dict[str, int]:
    """Parse lines that consist of a name and a whole number."""
    found = {}
    for line in (tree.text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if value.isascii() and value.isdigit() and len(value) < 20:
            found[name] = int(value)
    return found


def _hex(tree: Tree, path: str) -> int | None:
    match = _HEX.fullmatch(tree.text(path, 64) or "")
    return int(match[1], 16) if match else None
