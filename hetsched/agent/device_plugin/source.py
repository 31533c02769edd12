"""Grants of this node's pods from the answers of the control plane, with a request for newer ones.

A pod can reach its kubelet before the agent's next report, and the kubelet requests its GPUs at that moment. Every
answer names all grants of the node; an allocation that does not verify under this node's key is ignored. A caller that
needs newer grants has a message sent and waits for its answer.
"""

from __future__ import annotations

import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Sequence

from hetsched.contracts.messages.agent_message import AgentAnswer
from hetsched.contracts.messages.agent_report import MachineProblem

from ..pins.grants import Grants
from .pod_selection import PodGrant


class AnsweredGrants:
    """Verified grants in the order of their first answer; `hurry` requests an immediate message."""

    def __init__(self, node: str, hurry: Callable[[], None]) -> None:
        self._grants = Grants(node)
        self._hurry = hurry
        self._news = threading.Condition()
        self._answers = 0

    @property
    def problems(self) -> tuple[MachineProblem, ...]:
        with self._news:
            return self._grants.problems

    def receive(self, answer: AgentAnswer) -> None:
        """Process an answer of the control plane."""
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
        """Send a message now and wait for its answer, at most for the given time."""
        until = time.monotonic() + seconds
        with self._news:
            before = self._answers
            self._hurry()
            while self._answers == before and (left := until - time.monotonic()) > 0:
                self._news.wait(left)
