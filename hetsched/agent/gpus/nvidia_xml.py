"""Parse the output of `nvidia-smi -q -x`.

The document is untrusted, and XML can refer to other files or expand without limit. Each driver version uses different
words for "unknown" and removes or adds elements. A document may name its DTD (all do) but must not contain
declarations; references are never fetched. Limits are `MAX_BYTES`, `MAX_DEPTH` and `MAX_ELEMENTS`. The text of all
elements is kept, attributes only of `gpu` elements. An absent element, or an element whose text is in `_NOTHING`, is
read as None. A text in `_BROKEN` instead of a memory size or a clock means that the driver lost the GPU.
Source: nvsmi_device_v12.dtd and nvsmi_device_v13.dtd, which published documents refer to; nvidia-smi(1).
"""

from __future__ import annotations

import re
from xml.parsers import expat

from hetsched.contracts.messages.agent_report import MachineProblem, MigDevice
from hetsched.contracts.objects.cards import mig_profile

from .readings import CardReading, pci_address

MAX_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 24
MAX_ELEMENTS = 100_000
_SKIPPED = frozenset({"supported_clocks", "accounted_processes"})
_MAX_TEXT = 4096
_MAX_CARDS = 256
_NOTHING = frozenset(
    {
        "", "n/a", "[n/a]", "none", "not supported", "[not supported]", "not available", "insufficient permissions",
        "[insufficient permissions]", "requested functionality has been deprecated", "unknown",
    }
)  # fmt: skip
_BROKEN = ("unknown error", "err!", "gpu is lost", "gpu requires reset", "gpu access blocked", "fallen off the bus")
_AMOUNT = re.compile(r"([0-9]{1,12})(?:\.[0-9]{1,6})? ?(MiB|MHz|GiB)", re.ASCII)
# Elements whose value "yes" means that a GPU must not be used.
_FAULTS = {
    "remapped_rows/remapped_row_failure": "memory rows could not be remapped",
    "ecc_errors/unrepairable_memory": "the memory cannot be repaired",
    "gpu_reset_status/reset_required": "the GPU must be reset",
}
_WAITS = {
    "remapped_rows/remapped_row_pending": "memory rows will be remapped at the next reset",
    "retired_pages/pending_retirement": "memory pages will be retired at the next reset",
    "retired_pages/pending_blacklist": "memory pages will be retired at the next reset",
    "ecc_errors/channel_repair_pending": "a memory channel will be repaired at the next reset",
    "ecc_errors/tpc_repair_pending": "a compute unit will be repaired at the next reset",
    "gpu_reset_status/drain_and_reset_recommended": "the driver recommends draining and resetting the GPU",
}


class InvalidDocument(Exception):
    """The document is invalid or unsupported."""


class Element:
    """One element: its text without surrounding white space, and its children."""

    __slots__ = ("children", "identity", "name", "text")

    def __init__(self, name: str, identity: str = "") -> None:
        self.name, self.identity, self.text = name, identity, ""
        self.children: list[Element] = []

    def all(self, name: str) -> list[Element]:
        return [child for child in self.children if child.name == name]

    def at(self, path: str) -> Element | None:
        """Return the first element at a path of element names."""
        here: Element | None = self
        for name in path.split("/"):
            here = next((child for child in here.children if child.name == name), None) if here else None
        return here

    def word(self, path: str) -> str | None:
        """Return the text at a path, or None if it is missing or unknown."""
        found = self.at(path)
        if found is None or found.text.lower() in _NOTHING:
            return None
        return found.text

    def amount(self, path: str, unit: str) -> int | None:
        """Return the integer at a path, or None if it is missing or not in this `unit`."""
        match = _AMOUNT.fullmatch(self.word(path) or "")
        return int(match[1]) if match and match[2] == unit else None


def parse(data: bytes) -> Element:
    """Parse a document into elements. Raises: InvalidDocument."""
    if len(data) > MAX_BYTES:
        raise InvalidDocument(f"the document is larger than {MAX_BYTES} bytes")
    top = Element("")
    stack = [top]
    skipping = count = 0

    def doctype(_name: str, _system: str | None, _public: str | None, has_declarations: int) -> None:
        if has_declarations:
            raise InvalidDocument("the document type definition contains declarations")

    def refuse(*_: object) -> int:
        raise InvalidDocument("the document declares or uses an entity")

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal skipping, count
        count += 1
        if skipping or name in _SKIPPED:
            skipping += 1
            if skipping > MAX_DEPTH:
                raise InvalidDocument("the document is nested too deeply")
            return
        if len(stack) > MAX_DEPTH or count > MAX_ELEMENTS:
            raise InvalidDocument("the document is nested too deeply or too long")
        element = Element(name, attributes.get("id", "")[:64] if name == "gpu" else "")
        stack[-1].children.append(element)
        stack.append(element)

    def end(_name: str) -> None:
        nonlocal skipping
        if skipping:
            skipping -= 1
            return
        element = stack.pop()
        element.text = element.text.strip()

    def text(piece: str) -> None:
        if not skipping and len(stack[-1].text) < _MAX_TEXT:
            stack[-1].text += piece

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    parser.StartDoctypeDeclHandler = doctype
    parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse
    parser.SkippedEntityHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise InvalidDocument(f"the document is not XML: {error}") from None
    except (ValueError, LookupError) as error:  # unknown encoding
        raise InvalidDocument(f"the encoding of the document is not supported: {error}") from None
    if [child.name for child in top.children] != ["nvidia_smi_log"]:
        raise InvalidDocument("the root element is not nvidia_smi_log")
    return top.children[0]


def read_nvidia_xml(data: bytes, problems: list[MachineProblem]) -> list[CardReading] | None:
    """Return the GPUs in a document, or None if it cannot be read."""
    try:
        root = parse(data)
    except InvalidDocument as refusal:
        problems.append(MachineProblem("NvidiaDocumentUnreadable", f"nvidia-smi's document: {refusal}", "nvidia-smi"))
        return None
    found = [_card(gpu) for gpu in root.all("gpu")[:_MAX_CARDS]]
    attached = root.word("attached_gpus") or ""
    if attached.isascii() and attached.isdigit() and int(attached[:9]) != len(found):
        problems.append(
            MachineProblem(
                "CardsNotDescribed",
                f"nvidia-smi's document says that {attached[:9]} GPUs are attached but describes {len(found)}",
                "nvidia-smi",
            )
        )
        # If GPUs are missing, the position in the document is not the driver's index, so the number of the device node
        # is used.
        for card in found:
            card.index = card.minor
    else:
        for index, card in enumerate(found):
            card.index = index
    return found


def _card(gpu: Element) -> CardReading:
    minor = gpu.word("minor_number") or ""
    card = CardReading(
        vendor="nvidia",
        pci_address=pci_address(gpu.word("pci/pci_bus_id") or gpu.identity),
        uuid=gpu.word("uuid"),
        model=gpu.word("product_name"),
        minor=int(minor) if minor.isascii() and minor.isdigit() and len(minor) < 5 else None,
        memory_mib=gpu.amount("fb_memory_usage/total", "MiB"),
        clock_mhz=gpu.amount("max_clocks/graphics_clock", "MHz"),
    )
    card.mig_devices = _mig_devices(gpu, card.model or "")
    current, pending = gpu.word("mig_mode/current_mig"), gpu.word("mig_mode/pending_mig")
    if current != pending:
        card.notes.append(f"MIG is {current} and will be {pending} after the next reset")
    processes = gpu.at("processes")
    if processes is not None and processes.text.lower() not in _NOTHING - {"", "none"}:
        card.processes = len({process.word("pid") for process in processes.all("process_info")})
    _health(gpu, card)
    # GPUs with the same fabric cluster and clique are connected through its switches.
    if gpu.word("fabric/state") == "Completed" and gpu.word("fabric/status") in (None, "Success"):
        card.fabric = f"{gpu.word('fabric/clusterUuid') or ''}.{gpu.word('fabric/cliqueId') or ''}"
    return card


def _health(gpu: Element, card: CardReading) -> None:
    for path in ("fb_memory_usage/total", "max_clocks/graphics_clock", "uuid", "product_name"):
        text = gpu.word(path) or ""
        if any(word in text.lower() for word in _BROKEN):
            card.troubles.append(f"the driver reports {text[:60]!r} for {path}")
    if card.troubles:
        card.uuid = card.uuid if card.uuid and card.uuid.startswith("GPU-") else None
    card.troubles += [why for path, why in _FAULTS.items() if _is_yes(gpu, path)]
    card.notes += dict.fromkeys(why for path, why in _WAITS.items() if _is_yes(gpu, path))
    action = gpu.word("gpu_recovery_action")
    if action is not None:
        card.troubles.append(f"the driver requests the recovery action {action[:60]}")
    fabric = gpu.word("fabric/health/summary")
    if fabric is not None and fabric.lower() != "healthy":
        card.troubles.append(f"the health of the fabric is {fabric[:60]}")
    card.healthy = True if card.memory_mib is not None else None


def _is_yes(gpu: Element, path: str) -> bool:
    return (gpu.word(path) or "").lower() == "yes"


def _mig_devices(gpu: Element, model: str) -> tuple[MigDevice, ...] | None:
    """Return a GPU's MIG instances: empty if MIG is off or unsupported, None if the driver lost the GPU."""
    mode = gpu.at("mig_mode/current_mig")
    if mode is not None and any(word in mode.text.lower() for word in _BROKEN):
        return None
    if gpu.word("mig_mode/current_mig") != "Enabled":
        return ()
    holder = gpu.at("mig_devices")
    found = []
    for device in holder.all("mig_device")[:64] if holder else []:
        cores = device.word("device_attributes/shared/multiprocessor_count") or ""
        memory = device.amount("fb_memory_usage/total", "MiB")
        profile = None
        if memory is not None and cores.isascii() and cores.isdigit():
            profile = mig_profile(model, int(cores[:6]), memory)
        found.append(MigDevice(device.word("uuid"), profile, memory))
    return tuple(found)
