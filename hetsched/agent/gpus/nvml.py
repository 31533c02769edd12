"""Read NVIDIA GPUs through NVML.

The driver may be absent, be older than its bindings, or hang on a GPU that fell off the bus. The library is loaded at
its first use. If a call fails, its value is None. A GPU is unhealthy if the driver reports it as lost or in need of a
reset, or if it had a critical Xid since the agent started, except for Xids that programs can cause. The calls run on a
separate thread. If they do not return within `PATIENCE_SECONDS`, the report contains a problem, and no further call
starts before they return.
Source: NVML API reference; NVIDIA Xid errors (which Xids programs cause).
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Protocol

from hetsched.contracts.messages.agent_report import MachineProblem, MigDevice
from hetsched.contracts.objects.cards import facts_of

from .readings import CardReading, pci_address

PATIENCE_SECONDS = 10.0
_MIB = 1024 * 1024
_NO_DRIVER = frozenset({9, 12})  # DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND
_GONE = {15: "the driver lost the GPU", 16: "the GPU must be reset"}  # GPU_IS_LOST, RESET_REQUIRED
_GRAPHICS_CLOCK, _ON, _SWITCH = 0, 1, 2
_MOST_LINKS = 18
_XID_EVENT, _MOST_EVENTS = 8, 1000
# Xids for exceptions and faults of a program, and for the consequences of a stopped program.
_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
_NEAR = {0: "switch", 10: "switch", 20: "switch", 30: "zone", 40: "zone", 50: "system"}

Handle = Any


class Nvml(Protocol):
    """Functions that the bindings must have. Others are looked up by name, because older bindings lack some of them."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle: ...


def bindings() -> Nvml | None:
    """Load NVML's bindings; return None if they are not installed."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return None
    nvml: Any = pynvml
    loaded: Nvml = nvml
    return loaded


class NvmlClient:
    """NVML of this machine; `nvml` is None if the bindings are not installed."""

    def __init__(self, nvml: Nvml | None, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._nvml = nvml
        self._patience_seconds = patience_seconds
        self._asking: threading.Thread | None = None
        self._xids: _Xids | None = None

    def read(self, problems: list[MachineProblem]) -> list[CardReading] | None:
        """Return the driver's GPUs, or None if there is no driver or it does not respond."""
        nvml = self._nvml
        if nvml is None:
            return None
        if self._asking is not None and self._asking.is_alive():
            problems.append(MachineProblem("NvmlHangs", "NVML has not responded to the previous query yet", "nvml"))
            return None
        found: list[list[CardReading] | None] = []
        found_problems: list[MachineProblem] = []
        self._asking = threading.Thread(
            target=lambda: found.append(self._ask(nvml, found_problems)), daemon=True, name="nvml"
        )
        self._asking.start()
        self._asking.join(self._patience_seconds)
        if self._asking.is_alive():
            problems.append(
                MachineProblem("NvmlHangs", f"NVML has not responded for {self._patience_seconds:g} s", "nvml")
            )
            return None
        problems += found_problems
        return found[0] if found else None

    def _ask(self, nvml: Nvml, problems: list[MachineProblem]) -> list[CardReading] | None:
        cards = _read(nvml, problems)
        if cards is not None:
            self._xids = self._xids or _Xids(nvml)
            for uuid, xid in self._xids.seen().items():
                for card in cards:
                    if card.uuid == uuid:
                        card.troubles.append(f"the GPU reported Xid {xid}")
        return cards


class _Xids:
    """Watcher of critical Xids, which keeps NVML initialized; Xids from before its creation are not reported."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._events: Any = None
        self._seen: dict[str, int] = {}
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            nvml.nvmlInit()
            events = nvml.nvmlEventSetCreate()
            for index in range(nvml.nvmlDeviceGetCount()):
                with contextlib.suppress(nvml.NVMLError):
                    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(index), _XID_EVENT, events)
            self._events = events

    def seen(self) -> dict[str, int]:
        """Read the pending events and return the last Xid of each GPU by UUID."""
        for _ in range(_MOST_EVENTS if self._events is not None else 0):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except (self._nvml.NVMLError, AttributeError):
                break  # no more events
            if event.eventType == _XID_EVENT and event.eventData not in _OF_PROGRAMS:
                uuid = _DeviceReader(self._nvml, event.device).text("nvmlDeviceGetUUID")
                if uuid is not None:
                    self._seen[uuid] = int(event.eventData)
        return self._seen


def _read(nvml: Nvml, problems: list[MachineProblem]) -> list[CardReading] | None:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if getattr(error, "value", None) not in _NO_DRIVER:
            problems.append(MachineProblem("NvmlFailed", f"NVML cannot be initialized: {error}", "nvml"))
        return None
    try:
        return _cards(nvml)
    except nvml.NVMLError as error:
        problems.append(MachineProblem("NvmlFailed", f"NVML does not respond: {error}", "nvml"))
        return None
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _cards(nvml: Nvml) -> list[CardReading]:
    handles: list[tuple[CardReading, Handle]] = []
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            why = _GONE.get(getattr(error, "value", 0), f"the driver cannot open the GPU: {error}")
            found.append(CardReading(vendor="nvidia", index=index, troubles=[why]))
            continue
        card = _card(_DeviceReader(nvml, handle), index)
        found.append(card)
        handles.append((card, handle))
    for card, handle in handles:
        _links(_DeviceReader(nvml, handle), card, handles)
    return found


class _DeviceReader:
    """Reader of the values of one device; an unavailable value is None, and `gone` is set if the device was lost."""

    def __init__(self, nvml: Nvml, handle: Handle) -> None:
        self._nvml = nvml
        self._handle = handle
        self.gone = ""

    def ask(self, name: str, *more: Any) -> Any:
        call = getattr(self._nvml, name, None)
        if call is None:
            return None
        try:
            return call(self._handle, *more)
        except self._nvml.NVMLError as error:
            self.gone = _GONE.get(getattr(error, "value", 0), self.gone)
            return None

    def text(self, name: str) -> str | None:
        value = self.ask(name)
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def of(self, handle: Handle) -> _DeviceReader:
        return _DeviceReader(self._nvml, handle)


def _card(reader: _DeviceReader, index: int) -> CardReading:
    pci, memory = reader.ask("nvmlDeviceGetPciInfo"), reader.ask("nvmlDeviceGetMemoryInfo")
    card = CardReading(
        vendor="nvidia",
        index=index,
        pci_address=_bus(pci),
        uuid=reader.text("nvmlDeviceGetUUID"),
        model=reader.text("nvmlDeviceGetName"),
        minor=reader.ask("nvmlDeviceGetMinorNumber"),
        memory_mib=None if memory is None else memory.total // _MIB,
        cores=reader.ask("nvmlDeviceGetNumGpuCores"),
        clock_mhz=reader.ask("nvmlDeviceGetMaxClockInfo", _GRAPHICS_CLOCK),
        processes=_processes(reader),
    )
    card.mig_devices = _mig(reader, card)
    rows = reader.ask("nvmlDeviceGetRemappedRows")
    if rows is not None:
        _, _, pending, failed = rows
        if failed:
            card.troubles.append("memory rows could not be remapped")
        if pending:
            card.notes.append("memory rows will be remapped at the next reset")
    if reader.ask("nvmlDeviceGetRetiredPagesPendingStatus") == _ON:
        card.notes.append("memory pages will be retired at the next reset")
    if reader.gone:
        card.troubles.append(reader.gone)
    card.healthy = True if card.memory_mib is not None else None
    return card


def _bus(pci: Any) -> str | None:
    bus = getattr(pci, "busId", None)
    return pci_address(bus.decode(errors="replace") if isinstance(bus, bytes) else bus) if bus else None


def _processes(reader: _DeviceReader) -> int | None:
    kinds = [reader.ask(f"nvmlDeviceGet{kind}RunningProcesses") for kind in ("Compute", "Graphics")]
    answered = [processes for processes in kinds if processes is not None]
    return len({process.pid for processes in answered for process in processes}) if answered else None


def _mig(reader: _DeviceReader, card: CardReading) -> tuple[MigDevice, ...] | None:
    mode = reader.ask("nvmlDeviceGetMigMode")
    if mode is None:
        return None if reader.gone else ()
    current, pending = mode
    if current != pending:
        card.notes.append(f"MIG is {'on' if current else 'off'} and will be {'on' if pending else 'off'} after a reset")
    if current != _ON:
        return ()
    found = []
    for place in range(reader.ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
        handle = reader.ask("nvmlDeviceGetMigDeviceHandleByIndex", place)
        if handle is None:
            continue
        one = reader.of(handle)
        memory = one.ask("nvmlDeviceGetMemoryInfo")
        _, _, profile = (one.text("nvmlDeviceGetName") or "").partition(" MIG ")
        found.append(
            MigDevice(one.text("nvmlDeviceGetUUID"), profile or None, None if memory is None else memory.total // _MIB)
        )
    return tuple(found)


def _links(reader: _DeviceReader, card: CardReading, handles: list[tuple[CardReading, Handle]]) -> None:
    """Record the NVLinks of a GPU, and how near it is to each other GPU in the PCI topology."""
    remotes: list[str] = []
    switched = 0
    for link in range(_MOST_LINKS):
        if reader.ask("nvmlDeviceGetNvLinkState", link) != _ON:
            continue
        kind = reader.ask("nvmlDeviceGetNvLinkRemoteDeviceType", link)
        remote = _bus(reader.ask("nvmlDeviceGetNvLinkRemotePciInfo", link))
        if kind == _SWITCH:
            switched += 1
        elif remote is not None:
            remotes.append(remote)
    facts = facts_of(card.model or "")
    both_ways = facts.interconnect_gbs if facts else None
    if switched:
        card.fabric = "nvswitch"
    card.peers = {
        remote: round(both_ways / 2 * remotes.count(remote) / len(remotes), 3) if both_ways else None
        for remote in remotes
    }
    for other, handle in handles:
        if other is not card and other.pci_address is not None:
            level = reader.ask("nvmlDeviceGetTopologyCommonAncestor", handle)
            if level in _NEAR:
                card.near[other.pci_address] = _NEAR[level]
