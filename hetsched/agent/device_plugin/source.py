"""The grants of this node's pods, as the control plane answers them, and how newer ones are had at once.

Problem: a pod can reach its kubelet before the agent next reports, and the kubelet asks for its cards at that moment.
Rule: every answer names all that is granted on the node; what does not verify under this node's key is no grant. Who
needs newer ones has a message sent and waits for its answer.
"""

from __future__ import annotations

import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Sequence

from hetsched.contracts.agent_message import AgentAnswer
from hetsched.contracts.agent_report import MachineProblem

from ..pins.grants import Grants
from .choosing import PodGrant


class AnsweredGrants:
    """Verified grants in the order in which they were first answered; `hurry` has a message sent."""

    def __init__(self, node: str, hurry: Callable[[], None]) -> None:
        self._grants = Grants(node)
        self._hurry = hurry
        self._news = threading.Condition()
        self._answers = 0

    @property
    def problems(self) -> tuple[MachineProblem, ...]:
        with self._news:
            return self._grants.problems

    def hear(self, answer: AgentAnswer) -> None:
        """Take an answer."""
        try:
            key = urlsafe_b64decode(answer.key)
        except ValueError:
            key = b""
        with self._news:
            if key:
                self._grants.learn(answer.cluster, key)
                self._grants.answered((one.uid, one.allocation) for one in answer.allocations)
                self._grants.forget({one.uid for one in answer.allocations})
            self._answers += 1
            self._news.notify_all()

    def grants(self) -> Sequence[PodGrant]:
        with self._news:
            known = list(self._grants.known.items())
        return [PodGrant(uid, one.granted.gpus) for uid, one in known if one.granted.gpus]

    def refresh(self, seconds: float) -> None:
        """Wait for the answer to a message that is sent now, at most for that time."""
        until = time.monotonic() + seconds
        with self._news:
            before = self._answers
            self._hurry()
            while self._answers == before and (left := until - time.monotonic()) > 0:
                self._news.wait(left)
