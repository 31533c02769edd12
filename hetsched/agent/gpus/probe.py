"""Probe for the accelerators of a machine.

The PCI bus lists the GPUs that are present. Facts of NVIDIA GPUs are read from NVML or from the output of `nvidia-smi
-q -x`, facts of AMD GPUs from the kernel's files. Facts of one GPU are joined by PCI address. NVIDIA GPUs are listed
first, in their driver's order, then the others by address. A GPU that its driver does not list is unhealthy. A machine
has no GPUs (an empty list) if its PCI bus can be read and has none; if neither the bus nor a driver can be read, its
GPUs are unknown (None).
Invariant: two GPUs never share an index or a UUID; a UUID that two GPUs report is assigned to neither of them.
"""

from __future__ import annotations

from collections import Counter

from hetsched.contracts.messages.agent_report import MachineCard, MachineProblem
from hetsched.contracts.objects.cards import MAX_CARDS

from ..tree import Tree
from .nvidia_xml import read_nvidia_xml
from .nvml import NvmlClient, bindings
from .pci import DEVICES, kernel_driver_of, read_pci
from .readings import CardReading, links_of, machine_card, table_facts

_client: NvmlClient | None = None


def probe_cards(tree: Tree, nvidia_smi: bytes | None = None) -> tuple[MachineCard, ...] | None:
    """Return the GPUs of a machine, or None if unknown; an nvidia-smi document takes precedence over NVML."""
    readings = read_cards(tree, nvidia_smi)
    return None if readings is None else describe_cards(tree, readings)


def read_cards(
    tree: Tree, nvidia_smi: bytes | None = None, client: NvmlClient | None = None
) -> list[CardReading] | None:
    """Return the facts of each GPU, joined from all sources and in order; each GPU has a unique index."""
    on_bus = read_pci(tree)
    driver = _read_driver(tree, nvidia_smi, client)
    if driver is None and not on_bus and not tree.exists(DEVICES):
        tree.problems.append(
            MachineProblem("CardsUnknown", "the machine has neither a PCI bus nor a GPU driver", f"/{DEVICES}")
        )
        return None
    cards = _merge_readings(tree, driver, on_bus)[:MAX_CARDS]
    _number(cards)
    _own_uuids(cards)
    return cards


def describe_cards(tree: Tree, cards: list[CardReading]) -> tuple[MachineCard, ...]:
    """Return the GPUs for the report; irregularities are added to the tree's problems."""
    index_of = {card.pci_address: card.index or 0 for card in cards if card.pci_address is not None}
    found = []
    for card in cards:
        _report_problems(tree, card)
        assert card.index is not None
        zone = _zone(tree, card)
        found.append(machine_card(card, card.index, zone, links_of(card, index_of, cards)))
    return tuple(sorted(found, key=lambda one: one.index))


def _read_driver(tree: Tree, nvidia_smi: bytes | None, client: NvmlClient | None) -> list[CardReading] | None:
    global _client  # noqa: PLW0603  one client per process: a hanging driver gets one call at a time
    if nvidia_smi is not None:
        return read_nvidia_xml(nvidia_smi, tree.problems)
    if client is None and tree.is_this_machine:
        # The library is not loaded without the driver's device node, because it would only report that there is no
        # driver.
        if _client is None and tree.exists("dev/nvidiactl"):
            _client = NvmlClient(bindings())
        client = _client
    return None if client is None else client.read(tree.problems)


def _merge_readings(tree: Tree, driver: list[CardReading] | None, on_bus: list[CardReading]) -> list[CardReading]:
    """Return the GPUs that the driver lists, followed by those that are only on the PCI bus."""
    known = {card.pci_address for card in driver or () if card.pci_address is not None}
    cards = list(driver or ())
    for card in on_bus:
        if card.pci_address in known:
            continue
        assert card.pci_address is not None
        kernel_driver = kernel_driver_of(tree, card.pci_address)
        if card.vendor == "nvidia" and driver is not None and kernel_driver == "nvidia":
            card.troubles.append("the driver no longer lists the GPU")
        if card.memory_mib is None:
            why = f"the driver {kernel_driver} reports no facts" if kernel_driver else "it has no kernel driver"
            card.notes.append(f"the GPU is present, but {why}: memory and other facts are unknown")
        cards.append(card)
    return cards


def _number(cards: list[CardReading]) -> None:
    """Give each GPU an index: the driver's index, else the next free index."""
    uses = Counter(card.index for card in cards)
    taken = {card.index for card in cards if card.index is not None and uses[card.index] == 1}
    taken = {index for index in taken if index < MAX_CARDS}
    free = iter(index for index in range(2 * MAX_CARDS) if index not in taken)
    for card in cards:
        if card.index not in taken:
            card.index = next(free)


def _own_uuids(cards: list[CardReading]) -> None:
    counted = Counter(card.uuid for card in cards if card.uuid is not None)
    for card in cards:
        if card.uuid is not None and counted[card.uuid] > 1:
            card.notes.append(f"another card has the same uuid ({card.uuid})")
            card.uuid = None


def _zone(tree: Tree, card: CardReading) -> int | None:
    if card.pci_address is None:
        return None
    zone = tree.number(f"{DEVICES}/{card.pci_address}/numa_node")
    if zone is not None and zone >= 0:
        return zone
    online = tree.text("sys/devices/system/node/online", 4096)
    if zone is not None and online is not None and online.isascii() and online.isdigit() and len(online) < 6:
        return int(online)  # the machine has only this zone
    why = "the firmware does not report its zone" if zone is not None else "its file numa_node is missing or invalid"
    tree.problems.append(MachineProblem("CardZoneUnknown", f"card {card.index}: {why}", _card_label(card)))
    return None


def _report_problems(tree: Tree, card: CardReading) -> None:
    """Convert a GPU's troubles, notes and missing facts into problems."""
    texts = [("CardUnhealthy", why) for why in card.troubles] + [("CardNoted", why) for why in card.notes]
    if card.model is not None and card.memory_mib is not None and table_facts(card) is None:
        texts.append(("CardNotInTable", f"no data sheet is known for a {card.model} with {card.memory_mib} MiB"))
    if card.vendor == "nvidia" and card.memory_mib is not None and card.mig_devices is None:
        texts.append(("CardNoted", "the MIG mode is unknown"))
    tree.problems += [MachineProblem(code, f"card {card.index}: {why}", _card_label(card)) for code, why in texts]


def _card_label(card: CardReading) -> str:
    return card.pci_address or card.uuid or f"card {card.index}"
