"""Sentence templates that name other pods, used to write and to redact them.

A reader that is limited to namespaces must not see names of pods elsewhere. The ledger stores finished sentences, so
the placeholder of a stored sentence is found with the template that wrote it. Only the text at a placeholder is
replaced: user text that happens to look like `namespace/name` stays unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

HIDDEN = "(a pod of another namespace)"
BY_KUBELET = "kubelet:"  # prefix of the pod of a kubelet's own assignment that the control plane does not know
MOST_NAMED = 5
_KEY = r"[^\s/,;:()]+/[^\s/,;:()]+"
_ITEM = rf"(?:{BY_KUBELET})?(?:{_KEY}|{re.escape(HIDDEN)})(?: \(priority -?\d+\))?"
# `pods` are pod keys, optionally with priorities; `said` is the text of another program about one of them.
_HOLES = {"pods": rf"(?P<pods>{_ITEM}(?:, {_ITEM})*)(?: and \d+ more)?", "said": "(?P<said>.*)"}

Sees = Callable[[str], bool]


class PodSentence:
    """One template; `before` and `after` are patterns of the text allowed around the sentence.

    `cut`: the column that stores it may truncate it.
    """

    def __init__(self, template: str, *, before: str = "", after: str = "", cut: bool = False) -> None:
        self._template = template
        parts = re.split(r"\{(\w+)\}", template)
        inner = [_HOLES.get(part, r"\S+") if at % 2 else re.escape(part) for at, part in enumerate(parts)]
        self._pattern = re.compile(f"(?:{before}){''.join(inner)}(?:{after})", re.DOTALL)
        head = "".join(inner[: parts.index("pods")])
        self._head = re.compile(head) if cut else None

    def format(self, **values: object) -> str:
        """Return the sentence."""
        return self._template.format(**values)

    def redacted(self, text: str, sees: Sees) -> str | None:
        """Return a text of this template without the names of unseen namespaces; None for any other text.

        `sees` returns whether the reader may see a namespace. The text about a hidden pod is removed with its name.
        """
        found = self._pattern.fullmatch(text)
        if found is None:
            head = self._head.match(text) if self._head else None
            return None if head is None else text[: head.end()] + HIDDEN
        names = re.sub(_KEY, lambda key: key[0] if sees(namespace_of(key[0])) else HIDDEN, found["pods"])
        if names == found["pods"]:
            return text
        end = text[found.end("pods") :]
        if "said" in found.groupdict():
            end = text[found.end("pods") : found.start("said")].rstrip(" :")
        return text[: found.start("pods")] + names + end


def namespace_of(key: str) -> str:
    """Return the namespace of `namespace/name`."""
    return key.partition("/")[0]


def named(pods: Sequence[str], most: int = MOST_NAMED) -> str:
    """Return the first few of some pods and the number of the others."""
    more = f" and {len(pods) - most} more" if pods[most:] else ""
    return ", ".join(pods[:most]) + more


# Of a decision's summary.
IN_THE_PLACE_OF = PodSentence(", in the place of {pods}", before=r"\S+ placed on [^;]*?", after=r"(?:[,;].*)?")
# Of a decision's summary, and of its reasons.
PENDING = PodSentence(
    "it gets its place on {node} once {pods} left", before=r"(?:\S+ waits: )?", after="(?:; held by .*)?"
)
PREEMPTED_IN_RUN = PodSentence("preempted by {pods}", before=r"(?:\S+ (?:is|waits:) )?")
# Of a decision's reasons.
STAYS = PodSentence("{pods} stays: {said}")
POSSIBLE = PodSentence("it would fit on {node} without {pods}, which are not evicted on this cluster")
HELD_BY_FORCE_DELETED = PodSentence("held by force-deleted pod {pods} until {time}")
# Of a pod's message, and of the end of a hold.
PREEMPTED = PodSentence("Preempted by {pods}", after="(?:: .*)?")
FILLED = PodSentence("{node} was filled by {pods} before it was bound", cut=True)
# Of a what-if's placement.
SHARES_CORE = PodSentence("CPU {cpu} shares a core with CPU {sibling} of {pods}, {load}", after=".*")


def redacted(text: str, sees: Sees, *sentences: PodSentence) -> str:
    """Return a text, possibly written by one of these templates, without the names of unseen namespaces."""
    for sentence in sentences:
        found = sentence.redacted(text, sees)
        if found is not None:
            return found
    return text
