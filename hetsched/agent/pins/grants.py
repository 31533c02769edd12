"""Verified allocations of this node's pods.

Any client can write an annotation, copy it from another pod or restore an earlier one, and responses of the control
plane can arrive late or twice. An allocation is accepted only if it was signed with this node's key for the pod with
which it was received. If there are several allocations for a pod, the highest epoch is used; within an epoch, a
response of the control plane overrides the pod's annotation, because it was written later. A verified allocation
remains valid, even under a new key, until its pod is deleted or the node is moved to another control plane.
Invariant: `of` returns verified allocations only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.agent_report import MachineProblem
from hetsched.contracts.messages.signatures import VerifiedAllocation, verify

ALLOCATION = "hetsched.io/allocation"
MOST_PROBLEMS = 20


class VerifiedGrant(msgspec.Struct, frozen=True):
    """Verified allocation; `answered` is true for a response of the control plane, false for an annotation."""

    granted: VerifiedAllocation
    answered: bool = False


class Grants:
    """Verified allocations of one node, by pod UID."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.cluster = ""
        self.key: bytes | None = None
        self.known: dict[str, VerifiedGrant] = {}
        self._refused: dict[str, tuple[str, MachineProblem]] = {}
        self._answered: frozenset[str] = frozenset()
        self._carried: dict[str, str] = {}

    @property
    def problems(self) -> tuple[MachineProblem, ...]:
        found = sorted(self._refused.items())[:MOST_PROBLEMS]
        return tuple(problem for _, (_, problem) in found)

    def of(self, uid: str) -> VerifiedAllocation | None:
        known = self.known.get(uid)
        return None if known is None else known.granted

    def learn(self, cluster: str, key: bytes) -> None:
        """Set the cluster and the key that signs allocations for this node."""
        if cluster != self.cluster:
            self.known = {}
        if (cluster, key) != (self.cluster, self.key):
            self._refused, self._carried = {}, {}
        self.cluster, self.key = cluster, key

    def answered(self, allocations: Iterable[tuple[str, str]]) -> None:
        """Process the allocations in a response of the control plane, as pairs of pod UID and signed text."""
        given = dict(allocations)
        self._answered = frozenset(given)
        for uid, text in given.items():
            self._add(uid, text, answered=True)

    def process_annotation(self, uid: str, text: str) -> None:
        """Process the allocation in the annotations of a pod in the runtime; each text is verified once."""
        if self._carried.get(uid) != text:
            self._add(uid, text, answered=False)

    def forget(self, present: Collection[str]) -> None:
        """Delete the allocations of pods that are neither in the runtime nor in the control plane's last response."""
        self.known = {uid: known for uid, known in self.known.items() if uid in present or uid in self._answered}
        self._refused = {uid: refused for uid, refused in self._refused.items() if uid in present}
        self._carried = {uid: text for uid, text in self._carried.items() if uid in present}

    def _add(self, uid: str, text: str, *, answered: bool) -> None:
        refused = self._refused.get(uid)
        if self.key is None or (refused is not None and refused[0] == text):
            return
        known = self.known.get(uid)
        try:
            granted = verify(text, self.key, uid=uid, node=self.node)
        except InputError as error:
            # After a change of the key, the signature of an annotation accepted earlier is no longer valid. The
            # accepted allocation is kept.
            if known is None or answered:
                self._refuse(uid, text, error.code, error.message)
            return
        if not answered:
            self._carried[uid] = text
        if known is not None:
            if granted == known.granted and answered <= known.answered:
                return
            if (granted.epoch, answered) < (known.granted.epoch, known.answered):
                if granted.epoch < known.granted.epoch:
                    message = f"its epoch {granted.epoch} is older than the known epoch {known.granted.epoch}"
                    self._refuse(uid, text, "AllocationOutdated", message)
                return
        self._refused.pop(uid, None)
        self.known[uid] = VerifiedGrant(granted, answered)

    def _refuse(self, uid: str, text: str, code: str, message: str) -> None:
        self._refused[uid] = (
            text,
            MachineProblem(code, f"the allocation of pod {uid[:64]} is not applied: {message}", uid[:64]),
        )
