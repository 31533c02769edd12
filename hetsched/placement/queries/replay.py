"""Replay of a policy version over past decisions of a cluster; nothing is written.

A replay shows the effect of a policy change on past pods before the change takes effect.
The stream contains the latest decisions of the N pods that were decided last, one for each pod, in order; the pods of
one batch form a group. The replay starts from the state of the first decision. Reservations that began later but have
no decision in the stream (pods of other schedulers, earlier placements of the same pods) are added on their actual
nodes. Ended pods are removed from their nodes in the replay, unless a decision preempted them. A pod that changed in
place keeps the spec of its decision. Nodes and their measured usage are the current ones.
Invariant: the same rows, version and parameters give the same result for every caller.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from django.db.models import Q

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.policy import Policy, compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.lab.rerun import (
    FIRST,
    Event,
    PodBatch,
    PodChange,
    PodEnded,
    PodPlacedElsewhere,
    RecordedPod,
    ReplayCount,
    ReplayFidelity,
    ReplayNote,
    ReplayResult,
    RunPolicies,
    RunResult,
    compare,
    entries_of,
    rerun,
    side,
)
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import Decision, Pod, Reservation
from hetsched.placement.models.reservations import CONTINUED
from hetsched.policies.effective import active_specs
from hetsched.policies.models import PolicyRevision
from hetsched.policies.plan_contracts import PreviewParameters
from hetsched.storage.batches import batched
from hetsched.storage.snapshot_read import consistent_reads

# Releases whose reason has this prefix are preemptions. The replay does not repeat them: each run decides on its own.
_BY_A_DECISION = "Preempted by "
_DECIDED = (
    "id", "pod_id", "verdict", "node_name", "policy_name", "policy_version", "cluster_revision", "inventory_revision",
    "nominated_node", "created_at",
)  # fmt: skip
_HELD = ("pod_id", "revision", "released_revision", "release_reason", "allocation", "node__name")

Progress = Callable[[float], None]


class Stream(msgspec.Struct):
    """The state at the start of a replay, and the decisions, arrivals and departures (`events`) that follow it.

    `rows` contains the decisions by id.
    """

    state: ClusterState
    events: list[Event]
    rows: dict[int, dict[str, Any]]
    revision: int
    departures: int
    foreign: int
    notes: list[ReplayNote]
    versions: dict[tuple[str, int], PolicySpec]


def replay(
    cluster: Cluster, spec: PolicySpec, asked: PreviewParameters, *, progress: Progress = lambda _share: None
) -> tuple[ReplayResult, tuple[PodChange, ...]]:
    """Replay the stream under the baseline and under `spec`; return the result and all pods with different outcomes.

    `progress` is called with the completed share (0 to 1); an exception that it raises ends the run.
    Raises: InputError `NothingToReplay`.
    """
    began = time.perf_counter()
    with consistent_reads():
        stream = read_stream(cluster, asked.last)
        active = active_specs({spec.name, cluster.policy_name})
    entries = entries_of(stream.events)
    casts = _compile_policies(cluster, spec, asked, stream, active)
    notes = [*stream.notes, *_notes_on(cluster, casts.baseline, casts.draft)]
    baseline = rerun(
        stream.state, stream.events, casts.baseline, progress=lambda done: progress(done / len(entries) / 2)
    )
    draft = rerun(
        stream.state,
        stream.events,
        casts.draft,
        against=baseline.nodes,
        progress=lambda done: progress(0.5 + done / len(entries) / 2),
    )
    found = compare(entries, baseline, draft)
    first, last = stream.rows[min(stream.rows)], stream.rows[max(stream.rows)]
    result = ReplayResult(
        asked=asked.last,
        decisions=len(entries),
        first_decision=first["id"],
        last_decision=last["id"],
        from_time=first["created_at"],
        to_time=last["created_at"],
        revision=stream.revision,
        departures=stream.departures,
        foreign=stream.foreign,
        same=found.same,
        moved=found.count("moved"),
        infeasible=found.count("infeasible"),
        feasible=found.count("feasible"),
        pending_both=found.pending_both,
        baseline=side(casts.name, casts.version, baseline),
        draft=side(spec.name, spec.version, draft),
        fidelity=_fidelity(cluster, stream, entries, baseline, casts.decided_by),
        notes=tuple(notes),
        seconds=round(time.perf_counter() - began, 3),
        changes=found.changes[:FIRST],
    )
    return result, found.changes


# -- the stream --------------------------------------------------------------------------------------------------------


def read_stream(cluster: Cluster, last: int) -> Stream:
    """Read the decisions, arrivals and departures. Raises: InputError `NothingToReplay`."""
    notes: list[ReplayNote] = []
    rows, unknown = _latest(cluster, last, notes)
    if not rows:
        raise InputError(
            "NothingToReplay",
            Message("cluster {cluster} has no decision that can be replayed", cluster=cluster.name),
            place="cluster",
            hint="Submit a workload, or use another cluster",
        )
    if unknown:
        notes.append(
            ReplayNote(
                "policyGone", Message("{n} pods are skipped: the policy version of the decision is unknown", n=unknown)
            )
        )
    start, end = (pick(row["cluster_revision"] for row in rows.values()) for pick in (min, max))
    held, decided = _reservations_between(cluster, start, end), {row["pod_id"]: row for row in rows.values()}
    pods = _pods({*decided, *(item["pod_id"] for item in held)})
    keyed: list[tuple[tuple[int, int, int], Event]] = []
    departures = foreign = 0
    continuing = {(item["pod_id"], item["released_revision"]) for item in held if item["release_reason"] in CONTINUED}
    for entry in held:
        row, released = decided.get(entry["pod_id"]), entry["released_revision"]
        own = row is not None and entry["revision"] > row["cluster_revision"]
        if not own and entry["revision"] > start and (entry["pod_id"], entry["revision"]) not in continuing:
            keyed.append(
                (
                    (entry["revision"], 0, 1),
                    PodPlacedElsewhere(pods[entry["pod_id"]], entry["node__name"], entry["allocation"]),
                )
            )
            foreign += 1
        if released is None or entry["release_reason"] in CONTINUED:
            continue
        if entry["release_reason"].startswith(_BY_A_DECISION):
            if own and row is not None:
                row["node_name"] = ""  # a preempted pod is treated as not placed, as in the runs
        elif released <= end:
            keyed.append(((released, 0, 0), PodEnded(pods[entry["pod_id"]].key)))
            departures += 1
    keyed += [((revision, 1, first), group) for revision, first, group in _groups(rows, pods)]
    keyed.sort(key=lambda item: item[0])
    state = load_state(cluster.pk, at_revision=start).state
    versions = _versions({(row["policy_name"], row["policy_version"]) for row in rows.values()})
    return Stream(state, [event for _, event in keyed], rows, start, departures, foreign, notes, versions)


def _pods(wanted: set[int]) -> dict[int, PodSpec]:
    """Read pods without the results of their decisions, by id.

    Equal shapes share one object, which makes comparisons cheap.
    """
    pods: dict[int, PodSpec] = {}
    shapes: dict[Shape, Shape] = {}
    for some in batched(sorted(wanted)):
        for pk, spec in Pod.objects.filter(pk__in=some).values_list("pk", "spec"):
            shape = shapes.setdefault(spec.shape, spec.shape)
            undecided = {"node_name": "", "allocation": None, "extended_claim": ""}
            pods[pk] = msgspec.structs.replace(spec, shape=shape, **undecided)
    return pods


def _latest(cluster: Cluster, last: int, notes: list[ReplayNote]) -> tuple[dict[int, dict[str, Any]], int]:
    """Return each pod's latest decision, by id, and how many decisions were skipped because of an unknown policy."""
    latest = Pod.objects.filter(cluster=cluster, decision__isnull=False).order_by("-decision_id")
    ids = list(latest.values_list("decision_id", flat=True)[:last])
    found: list[dict[str, Any]] = []
    for some in batched(ids):
        found += Decision.objects.filter(pk__in=some, cluster=cluster).values(*_DECIDED)
    kept = [row for row in found if row["cluster_revision"] >= cluster.forgotten_revision]
    if len(kept) < len(found):
        message = Message(
            "{n} decisions are skipped: the state of the cluster at that time is no longer stored",
            n=len(found) - len(kept),
        )
        notes.append(ReplayNote("forgotten", message))
    elif len(found) < last:
        notes.append(ReplayNote("fewer", Message("only {n} pods have decisions", n=len(found))))
    known = _versions({(row["policy_name"], row["policy_version"]) for row in kept})
    rows = {row["id"]: row for row in kept if (row["policy_name"], row["policy_version"]) in known}
    return dict(sorted(rows.items())), len(kept) - len(rows)


def _versions(wanted: set[tuple[str, int]]) -> dict[tuple[str, int], PolicySpec]:
    rows = PolicyRevision.objects.filter(policy__name__in={name for name, _ in wanted})
    found = rows.filter(version__in={version for _, version in wanted}).select_related("policy")
    return {(row.policy.name, row.version): row.spec for row in found}


def _groups(rows: Mapping[int, dict[str, Any]], pods: Mapping[int, PodSpec]) -> list[tuple[int, int, PodBatch]]:
    """Return (revision, first decision, group) of each batch; the pods of a group are in submission order."""
    groups: list[tuple[int, int, PodBatch]] = []
    for revision, some in groupby(rows.values(), key=lambda row: row["cluster_revision"]):
        batch = list(some)
        entries = [
            RecordedPod(
                pods[row["pod_id"]], row["id"], row["policy_name"], row["policy_version"], row["node_name"] or None
            )
            for row in sorted(batch, key=lambda row: row["pod_id"])
        ]
        groups.append((revision, batch[0]["id"], PodBatch(tuple(entries))))
    groups.sort(key=lambda item: item[:2])
    return groups


def _reservations_between(cluster: Cluster, start: int, end: int) -> Sequence[dict[str, Any]]:
    """Return the reservations that began or ended after `start` and up to `end`."""
    began, over = (
        Q(revision__gt=start, revision__lte=end),
        Q(released_revision__gt=start, released_revision__lte=end + 1),
    )
    reservations = Reservation.objects.filter(began | over, cluster=cluster)
    return list(reservations.order_by("revision", "id").values(*_HELD))


# -- policies ----------------------------------------------------------------------------------------------------------


class ReplayPolicies(NamedTuple):
    """The policies of both runs, and the name and version of the baseline.

    `decided_by` maps each recorded policy version to the version that decides in the baseline run.
    """

    baseline: RunPolicies
    draft: RunPolicies
    name: str
    version: int
    decided_by: dict[tuple[str, int], tuple[str, int]]


def _compile_policies(
    cluster: Cluster, spec: PolicySpec, asked: PreviewParameters, stream: Stream, active: Mapping[str, PolicySpec]
) -> ReplayPolicies:
    compiled: dict[tuple[str, int], Policy] = {}

    def policy(of: PolicySpec) -> Policy:
        key = (of.name, of.version)
        if key not in compiled:
            compiled[key] = compile_policy(of, load_registry(), implied=True)
        return compiled[key]

    own = active.get(spec.name) if asked.baseline == "active" else None
    before = {key: own if own is not None and key[0] == spec.name else known for key, known in stream.versions.items()}
    after = {key: spec if asked.scope == "all" or key[0] == spec.name else known for key, known in before.items()}
    order = active.get(cluster.policy_name) or next(iter(before.values()))
    draft_order = spec if asked.scope == "all" or order.name == spec.name else order
    versions = {known.version for key, known in before.items() if key[0] == spec.name}
    names = {known.name for known in before.values()}
    name = spec.name if versions or len(names) != 1 else next(iter(names))
    return ReplayPolicies(
        RunPolicies(policy(order), {key: policy(of) for key, of in before.items()}),
        RunPolicies(policy(draft_order), {key: policy(of) for key, of in after.items()}),
        name,
        versions.pop() if len(versions) == 1 else 0,
        {key: (of.name, of.version) for key, of in before.items()},
    )


def _notes_on(cluster: Cluster, *casts: RunPolicies) -> list[ReplayNote]:
    """Return notes on inputs of past decisions that are not available any more, if a policy uses these inputs."""
    policies = [policy for cast in casts for policy in cast.policies.values()]
    notes: list[ReplayNote] = []
    if any(policy.measures for policy in policies):
        notes.append(
            ReplayNote(
                "measuredUse", Message("measured use is the current use, not the use at the time of the decision")
            )
        )
    if any(policy.wants_mix for policy in policies):
        notes.append(
            ReplayNote(
                "mix",
                Message(
                    "the workload mix is computed from the replayed pods, "
                    "not from the pods at the time of each decision"
                ),
            )
        )
    if cluster.kind == ClusterKind.KUBERNETES and any(policy.post_filters for policy in policies):
        notes.append(
            ReplayNote(
                "evictions",
                Message("the replay removes victims immediately; in the cluster, the pod waits until they are deleted"),
            )
        )
    return notes


# -- fidelity ----------------------------------------------------------------------------------------------------------


def _fidelity(
    cluster: Cluster,
    stream: Stream,
    entries: Sequence[RecordedPod],
    baseline: RunResult,
    decided_by: Mapping[tuple[str, int], tuple[str, int]],
) -> ReplayFidelity:
    """Count the pods that the baseline places on their actual nodes, and the other pods by reason."""
    equal, reasons = 0, Counter[str]()
    for entry in sorted(entries, key=lambda entry: entry.decision):
        if baseline.nodes[entry.decision] == entry.recorded:
            equal += 1
            continue
        row, key = stream.rows[entry.decision], (entry.policy, entry.version)
        if entry.recorded is not None and entry.recorded not in stream.state.row_of:
            reasons["nodeGone"] += 1
        elif decided_by[key] != key:
            reasons["otherVersion"] += 1
        elif row["inventory_revision"] != cluster.inventory_revision:
            reasons["inventoryChanged"] += 1
        elif row["nominated_node"]:
            reasons["nominated"] += 1
        else:
            reasons["consequence" if reasons else "unknown"] += 1
    counts = tuple(ReplayCount(code, pods) for code, pods in sorted(reasons.items(), key=lambda item: -item[1]))
    return ReplayFidelity(len(entries), equal, counts)
