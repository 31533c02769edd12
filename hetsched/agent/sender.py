"""Sender thread of the agent's messages to the control plane.

A slow or unreachable server must not delay the pinning of containers. The sender keeps only the latest state, not a
queue of messages. A report is repeated until the server responds to a message that contains it, so no report is lost
and no outdated report is sent. A change is sent immediately; without a change, usage and pins are sent at the interval
that the server requests. Responses are queued for the main thread.
Invariant: after a response without `ReportWanted`, the server has the report whose digest the message contained.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import msgspec

from hetsched.contracts.messages.agent_message import AgentAnswer, AgentMessage, digest_of
from hetsched.contracts.messages.agent_report import AgentReport, MachineUsage, PinnedContainer

from .uplink import Pause, Uplink, UplinkFailure

DEFAULT_WITHIN_SECONDS = 30.0
# Minimum interval between messages; a change is sent within this time.
LEAST_PAUSE_SECONDS = 1.0
log = logging.getLogger("hetsched.agent")


class Sender:
    """Thread that sends the latest state; `superseded` is set if another agent of this node was started later."""

    def __init__(
        self,
        uplink: Uplink,
        *,
        instance: str,
        started_at: str,
        assigns_gpus: bool = False,
        usage: Callable[[], MachineUsage | None] = lambda: None,
        pause: Pause | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._uplink = uplink
        self._named = {"instance": instance, "started_at": started_at}
        self._assigns_gpus = assigns_gpus
        self._usage = usage
        self._pause = pause or Pause()
        self._clock = clock
        self._news = threading.Condition()
        self._report: AgentReport | None = None
        self._unsent = False
        self._pinned: tuple[PinnedContainer, ...] | None = None
        self._sequence = 0
        self._within = DEFAULT_WITHIN_SECONDS
        self._answers: list[AgentAnswer] = []
        self._listeners: list[Callable[[AgentAnswer], None]] = []
        self._send_requested = False
        self._ended = False
        self._failing = ""
        self._answered = False
        self._doubts: list[str] = []
        self.superseded = False
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = 2.0) -> None:
        """Stop the thread without waiting for a call in flight."""
        with self._news:
            self._ended = True
            self._news.notify()
        self._thread.join(seconds)
        self._uplink.close()

    def send_report(self, report: AgentReport) -> None:
        """Set the report and send it immediately."""
        with self._news:
            self._report, self._unsent = report, True
            self._news.notify()

    def send_pinned(self, pinned: tuple[PinnedContainer, ...] | None) -> None:
        """Set the pinned CPUs to report, and send them immediately if they have changed."""
        with self._news:
            if pinned != self._pinned:
                self._pinned = pinned
                self._unsent = self._unsent or self._report is not None
                self._news.notify()

    def add_listener(self, listener: Callable[[AgentAnswer], None]) -> None:
        """Register a callback for every response; it runs in the sender's thread and must be added before `start`."""
        self._listeners.append(listener)

    def send_now(self) -> None:
        """Send a message now, because a caller waits for the response."""
        with self._news:
            self._send_requested = True
            self._news.notify()

    def answers(self) -> list[AgentAnswer]:
        """Return the responses received since the last call."""
        with self._news:
            found, self._answers = self._answers, []
        return found

    def _run(self) -> None:
        due = self._clock()
        while True:
            with self._news:
                while not self._ended and not self._has_to_send(due):
                    self._news.wait(max(due - self._clock(), 0.05) if self._report is not None else None)
                if self._ended:
                    return
            began = self._clock()
            wait = self._send()
            if self.superseded:
                return
            with self._news:
                self._back_off(began + LEAST_PAUSE_SECONDS if wait is None else self._clock() + wait)
            due = began + self._within

    def _has_to_send(self, due: float) -> bool:
        return self._report is not None and (self._unsent or self._send_requested or self._clock() >= due)

    def _back_off(self, until: float) -> None:
        """Wait until this time, even if the state changes; the caller holds the lock."""
        while not self._ended and (remaining := until - self._clock()) > 0:
            self._news.wait(remaining)

    def _send(self) -> float | None:
        """Send the state; return the seconds to wait after a failure, or None after a success."""
        with self._news:
            report, unsent, pinned = self._report, self._unsent, self._pinned
            self._unsent = self._send_requested = False
            self._sequence += 1
        assert report is not None
        message = AgentMessage(
            node=report.node,
            **self._named,
            sequence=self._sequence,
            digest=digest_of(report),
            report=_add_pinned(report, pinned) if unsent else None,
            usage=self._usage(),
            pinned=pinned,
            assigns_gpus=self._assigns_gpus,
        )
        try:
            answer = self._uplink.send(message)
        except UplinkFailure as failure:
            return self._failed(failure, unsent)
        self._pause.reset()
        if self._failing:
            log.info("the control plane responds again")
            self._failing = ""
        elif not self._answered:
            log.info("reported as node %r", report.node)
        self._answered = True
        self._log_quarantined(answer)
        with self._news:
            self._answers.append(answer)
            self._within = min(max(float(answer.report_within_seconds), LEAST_PAUSE_SECONDS), 3600.0)
            self._unsent = self._unsent or any(problem.code == "ReportWanted" for problem in answer.problems)
        for listener in self._listeners:
            listener(answer)
        return None

    def _log_quarantined(self, answer: AgentAnswer) -> None:
        """Log which facts of this machine are in quarantine, whenever the list of these facts changes."""
        doubts = sorted(problem.message for problem in answer.problems if problem.code == "FactQuarantined")
        if doubts != self._doubts:
            log.warning("quarantined facts, waiting for a review: %s", "; ".join(doubts[:5]) or "none")
            self._doubts = doubts

    def _failed(self, failure: UplinkFailure, unsent: bool) -> float:
        if failure.code != self._failing:
            log.warning("not reported: %s", failure)
            self._failing = failure.code
        with self._news:
            self._unsent = self._unsent or unsent
            self.superseded = failure.code == "AgentSuperseded"
        return self._pause.after(failure)


def _add_pinned(report: AgentReport, pinned: tuple[PinnedContainer, ...] | None) -> AgentReport:
    return msgspec.structs.replace(report, pinned=pinned)
