"""Facts of one GPU from several sources, merged for the report.

A driver, its XML document, sysfs and the PCI bus each report different facts of one GPU. A GPU is identified by its PCI
address. Amounts come from the driver; facts that no driver reports come from the table of models. Memory is never taken
from the table, because it varies with the driver's version. If the reported memory is more than 12 % below or 1 % above
that in the table, the GPU is another product of the same name, and the table is ignored.
Invariant: a fact that is not reported is None.
"""

from __future__ import annotations

import re

import msgspec

from hetsched.contracts.messages.agent_report import MachineCard, MachineLink, MigDevice
from hetsched.contracts.objects.cards import CardFacts, facts_of, model_tokens

_LEAST_SHARE, _MOST_SHARE = 0.88, 1.01
_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.ASCII)


class CardReading(msgspec.Struct):
    """Facts of one GPU, as collected so far. `minor` is the number of its device node, `fabric` its switch fabric.

    `index` is the driver's index. `peers` maps the PCI address of each directly linked GPU to GB/s in one direction,
    `near` the PCI addresses of other GPUs to the kind of connection. `troubles` make the GPU unhealthy, `notes` do not.
    """

    vendor: str
    pci_address: str | None = None
    index: int | None = None
    uuid: str | None = None
    model: str | None = None
    minor: int | None = None
    memory_mib: int | None = None
    cores: int | None = None
    clock_mhz: int | None = None
    mig_devices: tuple[MigDevice, ...] | None = None
    healthy: bool | None = None
    processes: int | None = None
    fabric: str = ""
    peers: dict[str, float | None] = {}
    near: dict[str, str] = {}
    troubles: list[str] = []
    notes: list[str] = []


def pci_address(text: str) -> str | None:
    """Return a PCI address in sysfs format (`0000:06:00.0`) for a domain of any width, or None if it is invalid."""
    found = _PCI.fullmatch(text.strip().lower())
    if found is None:
        return None
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function}"


def table_facts(card: CardReading) -> CardFacts | None:
    """Return a GPU's row in the table of models, or None if it is missing or has another memory size."""
    if card.model is None:
        return None
    facts = facts_of(card.model)
    tokens = model_tokens(card.model)
    while facts is None and card.vendor == "amd" and len(tokens) > 1:
        tokens = tokens[:-1]  # AMD adds the form factor of the board: "MI300X OAM"
        facts = facts_of(" ".join(tokens))
    if facts is None or card.memory_mib is None or facts.memory_mib is None:
        return facts
    return facts if _LEAST_SHARE <= card.memory_mib / facts.memory_mib <= _MOST_SHARE else None


def machine_card(card: CardReading, index: int, zone: int | None, links: tuple[MachineLink, ...]) -> MachineCard:
    """Return a GPU for the machine's report."""
    facts = table_facts(card)
    return MachineCard(
        index=index,
        uuid=card.uuid,
        model=card.model,
        memory_mib=card.memory_mib,
        mig_devices=card.mig_devices,
        zone=zone,
        pci_address=card.pci_address,
        healthy=False if card.troubles else card.healthy,
        vendor=card.vendor,
        cores=card.cores if card.cores is not None or facts is None else facts.cores,
        fp32_tflops=facts.fp32_tflops if facts else None,
        bandwidth_gbs=facts.bandwidth_gbs if facts else None,
        clock_mhz=card.clock_mhz if card.clock_mhz is not None or facts is None else facts.boost_mhz,
        links=links,
        processes=card.processes,
    )


def links_of(card: CardReading, index_of: dict[str, int], others: list[CardReading]) -> tuple[MachineLink, ...]:
    """Return the known links of a GPU to the other GPUs of its machine."""
    found: dict[int, MachineLink] = {}
    split = bool(card.mig_devices)
    for other in others:
        to = index_of.get(other.pci_address or "")
        if other is card or to is None or other.pci_address is None:
            continue
        # A GPU that is split into MIG instances has no links to other GPUs.
        joined = not split and not other.mig_devices
        if joined and other.pci_address in card.peers:
            found[to] = MachineLink(to, "nvlink", card.peers[other.pci_address])
        elif joined and card.fabric and card.fabric == other.fabric:
            facts = table_facts(card)
            both_ways = facts.interconnect_gbs if facts else None
            found[to] = MachineLink(to, "nvlink", both_ways / 2 if both_ways else None)
        elif other.pci_address in card.near:
            found[to] = MachineLink(to, card.near[other.pci_address])
    return tuple(found[to] for to in sorted(found))
