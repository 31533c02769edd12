"""Redaction of rows that name pods outside the namespaces of a limited reader.

Views redact the fields of a document before it is encoded, so the ETag matches the bytes that are sent. A pod is hidden
according to the namespace in its own field or in the parameters of a message. A text without parameters, as in rows of
earlier versions, is hidden completely if it may name a hidden pod. No other table is queried, and parameters that
contain the caller's text are never changed, so a response reveals nothing about names that the caller guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from hetsched.contracts.api.decision import Evicted, Placement, Reason, WhatIfAnswer
from hetsched.contracts.message import HIDDEN, IsVisible, Message, as_message, namespace_of
from hetsched.storage.sealed_secrets import derived

from .decision_check import RerunResult
from .why import Changed, Outlook, PreemptedBy, ReasonSpan

replace = msgspec.structs.replace
# `namespace/name`, but not a part of a path, of a URL, or of a name with a domain such as `hetsched.io/gpu`.
_KEY = re.compile(r"(?<![\w./-])([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)/[a-z0-9]", re.ASCII)


def redact_if_named(text: str, is_visible: IsVisible) -> Message:
    """Redact a text without parameters: hide it completely if it may name a pod of a namespace that is not visible."""
    return Message(text if all(is_visible(found[1]) for found in _KEY.finditer(text)) else HIDDEN)


class Redaction:
    """Redaction for one reader; if `namespaces` is None, the reader may see all names and no document is changed."""

    def __init__(self, namespaces: frozenset[str] | None) -> None:
        self._namespaces = namespaces

    def is_visible(self, namespace: str) -> bool:
        """Return True if the reader may see names of this namespace."""
        return self._namespaces is None or namespace in self._namespaces

    def pod(self, key: str) -> str:
        """Redact a pod's key."""
        return key if self.is_visible(namespace_of(key)) else HIDDEN

    def snapshot(self, digest: str) -> str:
        """Replace the digest of a cluster's state by a keyed digest.

        Readers cannot use a keyed digest to verify guesses about hidden pods. Equal states still have equal digests.
        Without a SECRET_KEY the result is empty.
        """
        key = None if self._namespaces is None else derived("snapshots of limited readers")
        if key is None:
            return digest if self._namespaces is None else ""
        return blake2b(digest.encode(), key=key, digest_size=len(digest) // 2 or 1).hexdigest()

    def summary(self, text: str) -> Message:
        """Redact a decision's summary."""
        return self._redacted(text)

    def message(self, text: str) -> Message:
        """Redact a pod's message, or the end reason of a hold."""
        return self._redacted(text)

    def reason(self, reason: Reason) -> Reason:
        """Redact a reason of a decision."""
        message = self._redacted(reason.message)
        return reason if message == reason.message else replace(reason, message=message)

    def reasons(self, reasons: Iterable[Reason]) -> tuple[Reason, ...]:
        """Redact the reasons of a decision."""
        return tuple(self.reason(reason) for reason in reasons)

    def evictions(self, evictions: Iterable[Evicted]) -> tuple[Evicted, ...]:
        """Redact the victims; for a hidden victim the disruption budget is hidden too."""
        return tuple(
            evicted
            if self.is_visible(namespace_of(evicted.pod))
            else replace(evicted, pod=HIDDEN, pdb=None if evicted.pdb is None else HIDDEN)
            for evicted in evictions
        )

    def spans(self, spans: Iterable[ReasonSpan]) -> list[ReasonSpan]:
        """Redact the reasons of a pod's time spans."""
        return [replace(span, message=self._redacted(span.message)) for span in spans]

    def preemptions(self, preemptions: Iterable[PreemptedBy]) -> list[PreemptedBy]:
        """Redact preemptors; for a hidden preemptor only the node and the time remain."""
        return [
            preemptor
            if self.is_visible(namespace_of(preemptor.pod))
            else replace(preemptor, pod=HIDDEN, pod_id=None, decision=None)
            for preemptor in preemptions
        ]

    def changed(self, changed: Changed) -> Changed:
        """Redact the difference of two decisions."""
        reasons = (replace(difference, message=self._redacted(difference.message)) for difference in changed.reasons)
        return replace(changed, reasons=tuple(reasons))

    def rerun(self, again: RerunResult) -> RerunResult:
        """Redact the result of a re-run decision."""
        return replace(
            again,
            summary=self.summary(again.summary),
            reasons=self.reasons(again.reasons),
            differences=tuple(
                replace(difference, what=self._redacted(difference.what)) for difference in again.differences
            ),
        )

    def outlook(self, outlook: Outlook) -> Outlook:
        """Redact the outlook of a pending pod; hidden blockers are counted but not named."""
        blockers = (
            tuple(
                evicted if self.is_visible(namespace_of(evicted.pod)) else replace(evicted, pod="", pdb=None)
                for evicted in node
            )
            for node in outlook.blockers
        )
        return replace(
            outlook,
            summary=self.summary(outlook.summary),
            reasons=self.reasons(outlook.reasons),
            blockers=tuple(blockers),
        )

    def what_if(self, answer: WhatIfAnswer) -> WhatIfAnswer:
        """Redact the answer to a what-if about a cluster; afterwards its summary names only visible pods."""
        if self._namespaces is None:
            return answer
        evictions = self.evictions(answer.evictions)
        return replace(
            answer,
            summary=self.summary(answer.summary),
            snapshot=self.snapshot(answer.snapshot),
            placements=tuple(self._placement(placement) for placement in answer.placements),
            unplaced=tuple(replace(unplaced, reasons=self.reasons(unplaced.reasons)) for unplaced in answer.unplaced),
            displaced=tuple(
                displaced
                if self.is_visible(namespace_of(displaced.pod))
                else replace(displaced, pod=HIDDEN, blocked_by=displaced.blocked_by and HIDDEN, message=msgspec.UNSET)
                for displaced in answer.displaced
            ),
            evictions=evictions,
        )

    def _placement(self, placement: Placement) -> Placement:
        return replace(placement, pairings=tuple(self._redacted(text) for text in placement.pairings))

    def _redacted(self, text: str) -> Message:
        """Redact the parameters of a message, or the whole text if it has no parameters."""
        message = as_message(text)
        if self._namespaces is None:
            return message
        return message.redacted(self.is_visible) if message.params else redact_if_named(message, self.is_visible)


UNLIMITED = Redaction(None)
