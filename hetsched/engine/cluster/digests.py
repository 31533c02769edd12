"""Digest of the whole content of a state.

To verify a decision, it is recomputed on its original state; the digest identifies that state without storing it. The
digest covers the rows' digests, in row order and in blocks, and the content outside the rows: namespaces, quotas,
disruption budgets, volumes, learnt usage. A row's digest covers its report, the allocation of every pod on it, all pod
fields that another decision may read, and its current use if it has a fresh sample.
Invariant: equal nodes and placed pods give equal digests in any process, independent of the history; only rows that
changed since the last call are read again.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Protocol

from hetsched.contracts.documents import encode
from hetsched.contracts.objects.cluster import DisruptionBudget

from .devices.state import DeviceState
from .expected_use import UsageHistory
from .quotas import Quotas
from .samples import Samples
from .state_view import StateView
from .volumes import VolumeState

_BYTES = 12
_BLOCK_ROWS = 64  # after a change of a row of N, two texts are read again: those of 64 rows and of N / 64 blocks


class DigestedState(StateView, Protocol):
    """The part of `ClusterState` that its digest covers."""

    budgets: tuple[DisruptionBudget, ...]
    devices: DeviceState
    experience: UsageHistory
    quotas: Quotas
    samples: Samples
    volumes: VolumeState


class Digests:
    """Digests of the rows, cached from the last call of `of`."""

    def __init__(self) -> None:
        self._rows = bytearray()  # `_BYTES` for each row
        self._blocks = bytearray()  # `_BYTES` for each `_BLOCK_ROWS` rows
        self._seen = (-1, 0)  # epoch and log length of the state at the last call

    def of(self, state: DigestedState) -> str:
        """Return the digest of the current state."""
        epoch, seen = self._seen
        rows: Iterable[int] = set(state.log[seen:])
        if epoch != state.epoch:
            rows, self._rows, self._blocks = range(len(state.reports)), bytearray(), bytearray()
        for row in rows:
            _set(self._rows, row, _row_digest(state, row))
        for block in sorted({row // _BLOCK_ROWS for row in rows}):
            start = _BYTES * _BLOCK_ROWS * block
            content = self._rows[start : start + _BYTES * _BLOCK_ROWS]
            _set(self._blocks, block, blake2b(content, digest_size=_BYTES).digest())
        self._seen = (state.epoch, len(state.log))
        hasher = blake2b(encode(state.namespaces, order="sorted"), digest_size=_BYTES)
        if state.quotas.limits or state.budgets:
            hasher.update(encode((state.quotas.limits, state.budgets), order="sorted"))
        if state.volumes.storage:
            hasher.update(state.volumes.digest)
        if state.devices.known:
            hasher.update(state.devices.digest())
        if state.experience:
            hasher.update(encode(state.experience.learnt, order="sorted"))
        hasher.update(self._blocks)
        return hasher.hexdigest()

    def carry_over(self, state: DigestedState) -> None:
        """Keep the digests for the state's next epoch, which differs from this one only in rows that the log names."""
        epoch, seen = self._seen
        self._seen = (epoch + (epoch == state.epoch), seen)

    def copy(self, state: DigestedState) -> Digests:
        """Return a copy of these digests for a copy of `state`, whose change log starts empty."""
        other = Digests()
        if self._seen == (state.epoch, len(state.log)):
            other._rows, other._blocks = bytearray(self._rows), bytearray(self._blocks)
            other._seen = (state.epoch, 0)
        return other


def _set(digests: bytearray, place: int, digest: bytes) -> None:
    """Store the digest at this place; the places before it are filled."""
    digests[_BYTES * place : _BYTES * (place + 1)] = digest


def _row_digest(state: DigestedState, row: int) -> bytes:
    hasher = blake2b(encode(state.reports[row], order="sorted"), digest_size=_BYTES)
    for key, placed in sorted(state.on_row[row].items()):
        pod = placed.pod
        rank = (pod.priority, pod.created_at, pod.preemptible, pod.gang)
        hasher.update(encode((key, pod.labels, rank, pod.shape, placed.allocation), order="sorted"))
    if state.samples.fresh[row]:
        hasher.update(state.columns.field("used")[:, row].tobytes())
    return hasher.digest()
