"""Replay of recorded decisions under a baseline and a draft policy, and the differences between the results.

A policy change is evaluated on the pods that actually arrived, in their order, together with the pods of other
schedulers that arrived and ended in between. A stream consists of groups of pods that were scheduled together, and of
the events between the groups: pods placed by other schedulers (`PodPlacedElsewhere`) and ended pods (`PodEnded`). An
ended pod is removed from the node where this run placed it. Each run starts with a copy of the same state. The pods of
a group are tried in the queue order of the run's ordering policy, each once, with the policy that it has in that run.
As in `replay`, a placed pod that is displaced is not placed again, the mix is that of the stream's pods, and the
metrics are measured at the end.

    margin = (total of the draft's node - total of the baseline's node) / sum of weights, all under the draft policy

Invariants: the same state, stream and policies yield the same result. A stream of one group without events yields the
same placements and metrics as `replay`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.balance import ClusterMetrics, cluster_metrics
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.compiled.batch import BatchScheduler
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.gangs import together
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.framework.policy import Policy
from hetsched.engine.framework.scoring import INFEASIBLE
from hetsched.engine.gpu.workload_mix import mix_of
from hetsched.engine.simulation.evictions import evictions

Change = Literal["moved", "infeasible", "feasible"]


class ReplaySide(msgspec.Struct, frozen=True, rename="camel"):
    """Result of one run, with metrics as in `simulate`. Version 0 means the policies of the recorded decisions."""

    policy: str
    version: int
    placed: int
    pending: int
    evicted: int
    metrics: ClusterMetrics


class PodChange(msgspec.Struct, frozen=True, rename={"from_node": "from", "to_node": "to"}):
    """One pod with a different result: its node in the baseline, its node in the draft, and its recorded node.

    `margin` is the score of the draft's node minus the score of the baseline's node, both under the draft. It is null
    if the draft may not use the baseline's node, or evicts pods. `reason` is set if the draft does not place the pod.
    """

    pod: str
    decision: int
    policy: str
    change: Change
    from_node: str | None
    to_node: str | None
    recorded: str | None
    margin: float | None = None
    reason: str | None = None


class ReplayCount(msgspec.Struct, frozen=True):
    """Number of pods with the same reason `code`."""

    code: str
    pods: int


class ReplayFidelity(msgspec.Struct, frozen=True):
    """Number of pods that the baseline places as recorded, and the reasons for the other pods."""

    compared: int
    equal: int
    reasons: tuple[ReplayCount, ...]


class ReplayNote(msgspec.Struct, frozen=True):
    """Note shown with the result: a stable code and the text."""

    code: str
    message: Message


class ReplayResult(msgspec.Struct, frozen=True, rename={
    "from_time": "from", "to_time": "to", "first_decision": "firstDecision", "last_decision": "lastDecision",
    "pending_both": "pendingBoth",
}):  # fmt: skip
    """Result with only the first changed pods in `changes`; `pending_both` counts pods that neither run places."""

    asked: int
    decisions: int
    first_decision: int
    last_decision: int
    from_time: datetime
    to_time: datetime
    revision: int
    departures: int
    foreign: int
    same: int
    moved: int
    infeasible: int
    feasible: int
    pending_both: int
    baseline: ReplaySide
    draft: ReplaySide
    fidelity: ReplayFidelity
    notes: tuple[ReplayNote, ...]
    seconds: float
    changes: tuple[PodChange, ...] = ()


# -- the stream --------------------------------------------------------------------------------------------------------


class RecordedPod(msgspec.Struct, frozen=True):
    """One pod of the stream with its recorded decision, policy, version and node."""

    pod: PodSpec
    decision: int
    policy: str
    version: int
    recorded: str | None


class PodBatch(msgspec.Struct, frozen=True):
    """Pods that were scheduled together, in the order of submission."""

    entries: tuple[RecordedPod, ...]


class PodPlacedElsewhere(msgspec.Struct, frozen=True):
    """Event that another scheduler placed a pod on a node, with the pod's allocation there."""

    pod: PodSpec
    node: str
    allocation: Allocation


class PodEnded(msgspec.Struct, frozen=True):
    """Event that a pod ended."""

    key: str


Event = PodBatch | PodPlacedElsewhere | PodEnded


class RunPolicies(msgspec.Struct, frozen=True):
    """Policies of one run: the policy of each pod, and the ordering policy of each group."""

    order: Policy
    policies: Mapping[tuple[str, int], Policy]

    def policy_of(self, entry: RecordedPod) -> Policy:
        return self.policies[entry.policy, entry.version]


class RunResult(msgspec.Struct):
    """Result of one run by decision ID: nodes (None if not placed), and margins and reasons of compared pods."""

    nodes: dict[int, str | None]
    evicted: int
    metrics: ClusterMetrics
    margins: dict[int, float]
    reasons: dict[int, str]


def entries_of(events: Sequence[Event]) -> list[RecordedPod]:
    """Return the pods of all groups of a stream, in order."""
    return [entry for event in events if isinstance(event, PodBatch) for entry in event.entries]


def rerun(
    state: ClusterState,
    events: Sequence[Event],
    cast: RunPolicies,
    *,
    against: Mapping[int, str | None] | None = None,
    progress: Callable[[int], None] = lambda _done: None,
) -> RunResult:
    """Run a stream on a copy of `state`.

    `against` contains the nodes that another run chose. For a pod with a different node, this run adds its margin over
    that node; for a pod that it does not place, it adds the reason. `progress` is called after each group; an exception
    from it ends the run.
    """
    running = _Running(state, events, cast, against or {})
    done = 0
    for event in events:
        if isinstance(event, PodBatch):
            running.decide(event)
            done += len(event.entries)
            progress(done)
        elif isinstance(event, PodPlacedElsewhere):
            running.add_foreign_pod(event)
        else:
            running.state.forget(event.key)
    return running.result()


_MOST_DIAGNOSED = 500


class _Running:
    """One run in progress."""

    def __init__(
        self, state: ClusterState, events: Sequence[Event], cast: RunPolicies, against: Mapping[int, str | None]
    ) -> None:
        self.state = state.fork()
        self.cast = cast
        self.against = against
        self.pods = [entry.pod for entry in entries_of(events)]
        self.state.use_mix(mix_of(self.pods))
        self.together = len({id(policy) for policy in (cast.order, *cast.policies.values())}) > 1
        self.batches: dict[int, BatchScheduler] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.by_key: dict[str, Outcome] = {}
        self.group: list[Outcome] = []  # outcomes of the group that is being decided
        self.margins: dict[int, float] = {}
        self.reasons: dict[int, str] = {}
        self.diagnosed: dict[tuple[int, object], str] = {}
        self.evicted = 0

    def add_foreign_pod(self, event: PodPlacedElsewhere) -> None:
        row = self.state.row_of.get(event.node)
        if row is None:
            return
        self.state.forget(event.pod.key)
        self.by_key.pop(event.pod.key, None)
        self.state.assume(self.state.compile(event.pod), row, event.allocation)

    def decide(self, group: PodBatch) -> None:
        """Try every pod of a group once, in the order of this run."""
        entries = {entry.pod.key: entry for entry in group.entries}
        for key in entries:
            self.state.forget(key)  # the previous pod with this name has ended
        self.state.gangs.end_backoffs(math.inf)
        order = self.cast.order.queue([entry.pod for entry in group.entries], self.state)
        if self.cast.order.follows_placements:
            for pod in order:
                self._run([entries[pod.key]])
        else:
            queue = list(order)
            for run in _runs([entries[pod.key] for pod in (together(queue) if self.together else queue)]):
                self._run(run)
        for batch in self.batches.values():
            batch.scheduler.settle()
            batch.scheduler.waiting_pods.drain()
        for outcome in self.group:
            self.evicted += sum(1 for _ in evictions(outcome, self.by_key, self.state))
        self.group.clear()

    def _run(self, entries: Sequence[RecordedPod]) -> None:
        """Schedule consecutive pods under one policy."""
        batch = self._batch(self.cast.policy_of(entries[0]))
        if any(self.against.get(entry.decision) is not None for entry in entries):
            for entry in entries:
                self._note(entry, self._compared_outcome(batch.scheduler, entry))
        else:
            for entry, outcome in zip(entries, batch.schedule([entry.pod for entry in entries]), strict=True):
                self._note(entry, outcome)

    def _batch(self, policy: Policy) -> BatchScheduler:
        known = self.batches.get(id(policy))
        if known is None:
            scheduler = Scheduler(self.state, policy, evicts=True)
            known = self.batches[id(policy)] = BatchScheduler(scheduler, expected=len(self.pods))
        return known

    def _note(self, entry: RecordedPod, outcome: Outcome) -> None:
        self.group.append(outcome)
        self.outcomes[entry.decision] = self.by_key[entry.pod.key] = outcome

    def _compared_outcome(self, scheduler: Scheduler, entry: RecordedPod) -> Outcome:
        """Schedule one pod, and compare the result with the node of the other run."""
        other = self.against.get(entry.decision)
        if other is None or not entry.pod.ready:
            return scheduler.schedule(entry.pod)
        self.state.gangs.mark_tried(entry.pod)
        request = self.state.compile(entry.pod)
        evaluation, total = scheduler.evaluator.evaluate(request)
        theirs, weights = float(total[self.state.row_of[other]]), evaluation.weight_sum + request.cluster_weight
        outcome = scheduler.schedule(entry.pod)
        if outcome.node is None:
            self.reasons[entry.decision] = self._why(scheduler, entry.pod)
        elif outcome.node != other and theirs > INFEASIBLE and not outcome.evicted:
            self.margins[entry.decision] = outcome.score - (theirs / weights if weights else 0.0)
        return outcome

    def _why(self, scheduler: Scheduler, pod: PodSpec) -> str:
        """Explain why a pod was not placed, once per shape; the result is "" after `_MOST_DIAGNOSED` explanations."""
        key = (id(scheduler), pod.shape)
        if key not in self.diagnosed:
            if len(self.diagnosed) >= _MOST_DIAGNOSED:
                return ""
            found = diagnose(scheduler, pod)
            self.diagnosed[key] = found.summary.removeprefix(pod.key).lstrip()
        return self.diagnosed[key]

    def result(self) -> RunResult:
        for decision, outcome in self.outcomes.items():
            if outcome.node is None and outcome.refusal is not None and decision not in self.reasons:
                self.reasons[decision] = outcome.refusal[1].message
        nodes = {decision: outcome.node for decision, outcome in self.outcomes.items()}
        return RunResult(nodes, self.evicted, cluster_metrics(self.state, self.pods), self.margins, self.reasons)


def _runs(entries: Sequence[RecordedPod]) -> Iterator[list[RecordedPod]]:
    """Split a queue into runs of pods with the same policy."""
    run: list[RecordedPod] = []
    for entry in entries:
        if run and (entry.policy, entry.version) != (run[0].policy, run[0].version):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


# -- differences -------------------------------------------------------------------------------------------------------

FIRST = 50
_ORDER = {"infeasible": 0, "moved": 1, "feasible": 2}


class RunComparison(msgspec.Struct, frozen=True):
    """Comparison of two runs of one stream; changes are sorted by kind, then by descending margin."""

    same: int
    pending_both: int
    changes: tuple[PodChange, ...]

    def count(self, change: Change) -> int:
        return sum(one.change == change for one in self.changes)


def compare(entries: Sequence[RecordedPod], baseline: RunResult, draft: RunResult) -> RunComparison:
    """Return the pods with a different result in the draft."""
    same = pending_both = 0
    changes: list[PodChange] = []
    for entry in entries:
        before, after = baseline.nodes[entry.decision], draft.nodes[entry.decision]
        if before == after:
            same, pending_both = same + (before is not None), pending_both + (before is None)
            continue
        change: Change = "infeasible" if after is None else "feasible" if before is None else "moved"
        margin = draft.margins.get(entry.decision) if change == "moved" else None
        changes.append(
            PodChange(
                entry.pod.key,
                entry.decision,
                entry.policy,
                change,
                before,
                after,
                entry.recorded,
                None if margin is None else round(margin, 6),
                (draft.reasons.get(entry.decision) or None) if after is None else None,
            )
        )
    changes.sort(key=lambda one: (_ORDER[one.change], -(one.margin or 0.0), one.decision))
    return RunComparison(same, pending_both, tuple(changes))


def side(cast_name: str, version: int, run: RunResult) -> ReplaySide:
    """Return the counts and metrics of one run."""
    pending = sum(node is None for node in run.nodes.values())
    return ReplaySide(cast_name, version, len(run.nodes) - pending, pending, run.evicted, run.metrics)
