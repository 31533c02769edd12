"""Daemon of the agent: watch the machine, pin CPUs, assign GPUs, and report.

The daemon runs on every node for months, next to all workloads, even while the control plane is down. Every few
seconds, it checks a few files for changes; the whole machine is read only after a change and every five minutes. Pins
are corrected in every step from signed allocations, even while the control plane is unreachable. A lock in the agent's
folder ensures that only one agent runs on a machine; the server detects agents that do not share a folder.
Invariant: SIGTERM ends the daemon within seconds; a failed probe is reported and does not end the daemon.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import signal
import sys
import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.agent_message import AgentAnswer, digest_of
from hetsched.contracts.messages.agent_report import (
    AgentReport,
    MachineProblem,
    MachineUsage,
    MachineZone,
    PinnedContainer,
)
from hetsched.contracts.times import rfc3339

from .kubelet.podresources import SOCKET as POD_RESOURCES
from .kubelet.podresources import PodResourcesClient
from .kubelet.state import KubeletWatch
from .machine import host_name, read_machine
from .options import Reporting
from .probe_usage import UsageMeter, stated_capacities
from .sender import Sender
from .tree import Tree
from .uplink import Uplink

POLL_SECONDS = 5.0
MEASURE_SECONDS = 15.0
WHOLE_SECONDS = 300.0
EXIT_BROKEN = 1
EXIT_SUPERSEDED = 4
# Contents of files and names in folders that are cheap to read and change when the machine changes.
_TEXTS = (
    "sys/devices/system/cpu/online", "sys/devices/system/cpu/present", "sys/devices/system/node/online",
    "sys/devices/system/node/has_memory",
)  # fmt: skip
_FOLDERS = ("proc/driver/nvidia/gpus", "sys/class/drm", "proc/sys/fs/binfmt_misc", "sys/bus/node/devices")
_STATE = (
    "var/lib/kubelet/config.yaml", "var/lib/kubelet/cpu_manager_state", "var/lib/kubelet/memory_manager_state",
    "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
)  # fmt: skip
log = logging.getLogger("hetsched.agent")


class Pins(Protocol):
    """CPU pinning of containers."""

    problems: tuple[MachineProblem, ...]

    def learn(self, cluster: str, key: bytes, allocations: list[tuple[str, str]]) -> None: ...
    def step(self, now: float) -> tuple[PinnedContainer, ...]: ...
    def close(self) -> None: ...


class Cards(Protocol):
    """GPU assignment."""

    def with_assigned(self, report: AgentReport) -> AgentReport: ...
    def step(self) -> None: ...
    def close(self) -> None: ...


class Meter(Protocol):
    """Meter of the usage between two calls."""

    last: MachineUsage | None

    def measure(self, tree: Tree) -> MachineUsage | None: ...
    def changed_steal(self, reported: tuple[MachineZone, ...]) -> tuple[MachineZone, ...] | None: ...


class Agent:
    """The agent of one machine; `run` returns when the agent is stopped."""

    def __init__(
        self,
        tree: Callable[[], Tree],
        read: Callable[[Tree], AgentReport],
        *,
        sender: Sender | None = None,
        pins: Pins | None = None,
        cards: Cards | None = None,
        meter: Meter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tree = tree
        self._read = read
        self._sender = sender
        self._pins = pins
        self._cards = cards
        self._meter = meter
        self._clock = clock
        self._measured_at = float("-inf")
        self._seen: object = None
        self._whole_at = float("-inf")
        self._sent_digest = ""
        self.report: AgentReport | None = None

    def run(self, stop: threading.Event) -> int:
        """Run steps until `stop` is set or another agent takes over; return the exit code."""
        if self._sender is not None:
            self._sender.start()
        try:
            while not stop.is_set():
                self.step()
                if self._sender is not None and self._sender.superseded:
                    log.error("a newer agent is running on this node; this agent exits")
                    return EXIT_SUPERSEDED
                if self._sender is not None and not self._sender.alive:
                    log.error("the reporting thread has ended; the agent exits for a restart")
                    return EXIT_BROKEN
                stop.wait(POLL_SECONDS)
            return 0
        finally:
            if self._sender is not None:
                self._sender.stop()
            for part in (self._pins, self._cards):
                if part is not None:
                    part.close()

    def step(self) -> None:
        """Run one iteration: process responses, pin CPUs, measure usage, serve GPUs, and report changes."""
        for answer in self._sender.answers() if self._sender is not None else ():
            self._apply_answer(answer)
        pinned = self._pins.step(self._clock()) if self._pins is not None else None
        self._measure()
        self._poll()
        if self._cards is not None:
            self._cards.step()
        if self._sender is not None:
            self._sender.send_pinned(pinned)

    def _measure(self) -> None:
        now = self._clock()
        if self._meter is not None and now - self._measured_at >= MEASURE_SECONDS:
            self._measured_at = now
            self._meter.measure(self._tree())

    def _poll(self) -> None:
        tree = self._tree()
        seen = fingerprint(tree), () if self._pins is None else self._pins.problems
        now = self._clock()
        is_due = now - self._whole_at >= WHOLE_SECONDS
        if seen == self._seen and not is_due:
            self._report_steal()
            return
        report = self._read(self._tree())
        if self._pins is not None:
            report = msgspec.structs.replace(report, problems=(*report.problems, *self._pins.problems))
        if self._cards is not None:
            report = self._cards.with_assigned(report)
        self._seen, self.report = seen, report
        digest = digest_of(report)
        if is_due or digest != self._sent_digest:
            self._sent_digest = digest
            self._whole_at = now
            if self._sender is not None:
                self._sender.send_report(report)

    def _report_steal(self) -> None:
        """Report a significant change of a zone's CPU steal immediately, without reading the machine again."""
        zones = self.report.zones if self.report is not None else None
        news = self._meter.changed_steal(zones) if self._meter is not None and zones is not None else None
        if self.report is not None and news is not None:
            self.report = msgspec.structs.replace(self.report, zones=news)
            if self._sender is not None:
                self._sender.send_report(self.report)

    def _apply_answer(self, answer: AgentAnswer) -> None:
        if self._pins is None or not answer.key:
            return
        try:
            key = urlsafe_b64decode(answer.key)
        except ValueError:
            log.warning("the key in the response of the control plane is not valid base64")
            return
        self._pins.learn(
            answer.cluster, key, [(allocation.uid, allocation.allocation) for allocation in answer.allocations]
        )


def fingerprint(tree: Tree) -> tuple[object, ...]:
    """Return a value that changes if a full read of the machine is required."""
    texts = tuple(tree.text(path) for path in _TEXTS)
    names = tuple(tree.names(path) for path in _FOLDERS)
    state = tuple(tree.data(path, 4 << 20) for path in _STATE)
    return texts, names, state


@contextmanager
def hold_agent_lock(folder: Path) -> Iterator[None]:
    """Hold the lock that permits only one agent on a machine. Raises: InputError `AgentRuns`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        # The agent continues without its folder and lock; a second agent is then detected only by the server.
        log.warning("%s cannot be used: %s", folder, error.strerror)
        yield
        return
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError("AgentRuns", "another agent is running on this machine", place=str(folder)) from None
        yield
    finally:
        os.close(lock)


def main(settings: Any, options: Reporting, nvidia_smi: bytes | None = None) -> int:
    """Run the daemon until SIGTERM or SIGINT, and return the exit code. Raises: InputError."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    if not options.server:
        log.info("no server is configured: the agent does not report")
    with hold_agent_lock(options.state):
        return build(settings, options, nvidia_smi).run(stop)


def build(settings: Any, options: Reporting, nvidia_smi: bytes | None = None) -> Agent:
    """Return an agent with the functions that the options enable."""
    node = settings.node or os.environ.get("NODE_NAME", "").strip() or host_name(Tree(settings.root))

    def tree() -> Tree:
        return Tree(settings.root)

    meter = UsageMeter(stated_capacities(os.environ))
    lister = PodResourcesClient(settings.root / POD_RESOURCES.relative_to("/"))

    def read(found: Tree) -> AgentReport:
        # The kubelet may start later than the agent.
        kubelet = lister if lister.socket.exists() else None
        return read_machine(found, node=node, nvidia_smi=nvidia_smi, meter=meter, kubelet=kubelet)

    sender = None
    if options.server:
        uplink = Uplink(options.server, options.bearer, ca_file=options.ca_file, cluster=options.cluster)
        sender = Sender(
            uplink,
            instance=secrets.token_hex(8),
            started_at=rfc3339(datetime.now(UTC)),
            assigns_gpus=options.devices,
            usage=lambda: meter.last,
        )
    cards = None
    if options.devices and sender is not None:
        from .device_plugin.gpu_assignment import card_keeper

        cards = card_keeper(node, sender, options.state)
    return Agent(tree, read, sender=sender, pins=_pins(node, settings.root, options), cards=cards, meter=meter)


def _pins(node: str, root: Path, options: Reporting) -> Pins | None:
    if not options.pins:
        return None
    from .cri import Runtime
    from .pins.pinner import Pinner

    kubelet = KubeletWatch(lambda: Tree(root))
    return Pinner(node, Runtime(options.runtime), options.state, Tree(root), kubelet=kubelet.now)
