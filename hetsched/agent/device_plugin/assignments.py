"""Record of GPU assignments: which GPUs the containers that hold slots have received.

An entry contains the slots that the kubelet requested for a container, the pod whose grant was used, and the GPUs that
were assigned in place of the GPUs of the slots. The entry is written to a file before the plugin responds to the
kubelet, because only the plugin knows it and would lose it in a restart. If no container holds the slots of an entry,
the entry expires `GRACE_SECONDS` after its creation. The delay is needed because the kubelet does not list the devices
of init containers and lists new assignments late. While the kubelet's state cannot be read, an entry expires when its
grant is deleted.
Invariant: the file is replaced atomically.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import msgspec

from hetsched.contracts.documents import encode
from hetsched.contracts.messages.agent_report import MachineProblem

GRACE_SECONDS = 5.0  # shorter than the wait for a grant, so an entry of an ended container expires during the wait
_VERSION = 1
_MOST_BYTES = 4 * 1024 * 1024


class AssignedGpus(msgspec.Struct, frozen=True):
    """GPUs of one container, from the grant of pod `uid`.

    `cards` maps each slot to the assigned GPU, and `millis` each slot to the share of this GPU in thousandths. `at` is
    the time of the assignment in seconds since 1970.
    """

    uid: str
    cards: dict[str, str]
    millis: dict[str, int] = {}
    at: float = 0.0


class _File(msgspec.Struct):
    v: int
    entries: list[AssignedGpus]


class AssignmentRecord:
    """Assignment entries of one resource, stored in a file, or only in memory if `path` is None."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self.problems: list[MachineProblem] = []
        self.entries: list[AssignedGpus] = self._read()

    def by_slot(self) -> dict[str, AssignedGpus]:
        return {slot: entry for entry in self.entries for slot in entry.cards}

    def settle(self, in_use: Collection[str] | None, granted: Collection[str]) -> None:
        """Delete expired entries.

        `in_use` contains the slots that containers hold (None if unknown), `granted` the UIDs of pods with a grant.
        """
        if in_use is not None:
            fresh = self._clock() - GRACE_SECONDS
            remaining = [
                entry for entry in self.entries if entry.at > fresh or any(slot in in_use for slot in entry.cards)
            ]
        else:
            remaining = [entry for entry in self.entries if entry.uid in granted]
        if remaining != self.entries:
            self._write(remaining)

    def add(self, uid: str, cards: dict[str, str], millis: dict[str, int]) -> None:
        """Record an assignment before it takes effect, and remove its slots from earlier entries. Raises: OSError."""
        remaining = [other for other in self.entries if cards.keys().isdisjoint(other.cards)]
        self._write([*remaining, AssignedGpus(uid, cards, millis, self._clock())])

    def resolve_slots(self, slots: Iterable[str]) -> tuple[str, ...]:
        """Return the GPUs assigned for these slots; a slot without an entry is returned as `unrecorded:<slot>`."""
        known = self.by_slot()
        return tuple(sorted({known[slot].cards[slot] if slot in known else f"unrecorded:{slot}" for slot in slots}))

    def _read(self) -> list[AssignedGpus]:
        if self.path is None:
            return []
        try:
            with self.path.open("rb") as file:
                found = msgspec.json.decode(file.read(_MOST_BYTES), type=_File)
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            self.problems.append(MachineProblem("HandedOutUnreadable", f"{self.path}: {error}", str(self.path)))
            return []
        return found.entries if found.v == _VERSION else []

    def _write(self, entries: list[AssignedGpus]) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_suffix(".new")
            with temporary.open("wb") as file:
                file.write(encode(_File(_VERSION, entries)))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        self.entries = entries
