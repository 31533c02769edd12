"""Place all members of a gang, or none (coscheduling).

Rule, for a pod of a gang of which `min` members must run together:
    PreFilter   rejects the pod in five cases: during the backoff of the gang; after the gang failed in this queue;
                if fewer than `min` members exist (reserved or pending); if no domain of a required topology level
                is sufficient; if the gang cannot fit as a whole. It cannot fit if all nodes together have too
                little free capacity for the missing members, or less than the minResources of the PodGroup.
                minResources above the total capacity never fit. A PostFilter plugin that finds victims for the
                whole gang withdraws the rejection for too little free capacity
    Filter      rejects nodes outside the topology domain that was selected for the gang. The selection for all members
                is made before the first member is scheduled (`engine.gangs.domain_choice`). Members that are placed
                already determine the domain of a required level
    Permit      `placed` counts the placed members and this one. placed >= min: allowed, with all waiting members;
                otherwise the member waits for scheduleTimeoutSeconds of the PodGroup, or `timeout_seconds`
    PostFilter  placed >= min: no effect. If the queue was registered, the number of members that the scheduler has
                not attempted yet is known: if placed + this number >= min, the members continue to wait; otherwise
                all waiting members are rejected, and the other members are not attempted. Without a registered
                queue, the members continue to wait if the gap (min - placed) / min is at most `gap_percent`;
                otherwise all waiting members are rejected
    Unreserve   rejects all waiting members when the reservation of a member is removed, by a time-out or otherwise
A rejected gang backs off for `backoff_seconds`. A gang whose members have different priorities, or state different
sizes or topology levels of the gang, is misconfigured.
No deadlock: a member waits only for registered members that the scheduler has not attempted yet. It attempts each of
them once, so every wait ends with the queue; members that are not registered wait until their time-out. The scheduler
removes the reservation of a rejected member in the same cycle, so two gangs never block each other's resources.
Invariant: after all pods of a registered queue were attempted, no gang with newly placed members has fewer than `min`
placed members.
Source: Kubernetes scheduler-plugins, coscheduling (KEP-2, KEP-42; core/core.go, coscheduling.go). The checks of the
remaining members and of the gang as a whole are specific to hetsched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import msgspec

from hetsched.contracts.api.decision import Reason, Verdict
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects import wishes
from hetsched.contracts.objects.workload import GangMember, PodSpec
from hetsched.contracts.params import Params
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import Bools, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.diagnosis import Diagnosis
from hetsched.engine.framework.extension_points import Scope
from hetsched.engine.framework.gangs import GangDomain, GangMembers, gang_key
from hetsched.engine.framework.handle import Handle
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import ALLOW, SKIP, Allow, Refusal, Skip, Wait
from hetsched.engine.framework.waiting_pods import WaitingPods
from hetsched.engine.gangs.capacity import missing_resources, slots_for
from hetsched.engine.gangs.domain_choice import DomainSearch, domain_of_placed

_NAME = "gang"
_DOMAIN = StateKey[GangDomain]("gang-domain")
_TOP_REASONS = 3
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]


class GangParams(Params, frozen=True):
    """Time-outs of waiting members, and the limits for complete gangs."""

    timeout_seconds: Annotated[
        _Seconds,
        msgspec.Meta(title="Timeout", description="Timeout for waiting members whose PodGroup has no timeout."),
    ] = 60.0
    backoff_seconds: Annotated[
        _Seconds, msgspec.Meta(title="Backoff", description="Time for which a rejected gang stays in backoff.")
    ] = 0.0
    gap_percent: Annotated[
        _Percent,
        msgspec.Meta(
            title="Maximum gap",
            description=(
                "If a member finds no node and the scheduler does not know the other pending members, the placed "
                "members keep waiting only if at most this percentage of the minimum number of members is missing."
            ),
        ),
    ] = 10


@plugin(
    "gang",
    summary="Place all members of a gang together, or none.",
    params=GangParams,
    scope=Scope.CLUSTER,
    helped_by=frozenset(Event),
)
class Gang:
    params: GangParams
    places_gangs_whole = True

    def concerns(self, pod: PodSpec) -> bool:
        return pod.gang is not None

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip | Refusal:
        gang, gangs = request.pod.gang, state.gangs
        if gang is None:
            return SKIP
        key = f"{request.pod.namespace}/{gang.name}"
        refusal = self._gang_refusal(key, request, gang, state)
        if refusal is not None:
            return refusal
        domain = gangs.domains.get(key)
        if isinstance(domain, Refusal):
            return domain
        if domain is None and gang.topology is not None:
            domain = domain_of_placed(state, key, gang.topology)
        if domain is None:
            return SKIP
        request.memo[_DOMAIN] = domain
        return None

    def _gang_refusal(self, key: str, request: Request, gang: GangMember, state: ClusterState) -> Refusal | None:
        """Return why no member of the pod's gang can be placed, apart from topology domains."""
        gangs = state.gangs
        if gang.min_available < 1:
            message = Message(
                "gang {key}: there is no PodGroup of this name, and no label states the minimum number of members",
                key=key,
            )
            return msgspec.structs.replace(_refusal("GangUnknown", message), field=wishes.GANG_MIN_AVAILABLE)
        group = gangs.group_of(request.pod)
        if group is not None and group.refusal is not None:
            return group.refusal
        if key in gangs.backoff_until:
            refusal = _refusal(
                "GangBackOff",
                Message("gang {key} is in backoff because not all of its members could be placed", key=key),
            )
            if group is not None:
                group.refusal = refusal
            return refusal
        if group is None:
            return None if gangs.placed_members(key) else _without_least_resources(key, gang, state)
        if not group.checked:
            group.checked = True
            group.refusal = _unresolvable(key, gang, group, state)
        return group.refusal

    def filter(self, request: Request, nodes: Window) -> Bools:
        inside: Bools = nodes.pick(request.memo[_DOMAIN].rows)
        return inside

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        domain = request.memo[_DOMAIN]
        message = Message(
            "the node is not in {domain}, the domain of {label} that was selected for the gang",
            domain=domain.name,
            label=domain.label,
        )
        yield Refusal("GangDomain", message, (domain.label,)), nodes.pick(~domain.rows)

    def prepare(self, request: Request, scheduler: Handle) -> None:
        """Select the topology domain of the pod's gang."""
        pod, state = request.pod, scheduler.state
        gang, gangs = pod.gang, state.gangs
        if gang is None or gang.topology is None:
            return
        key, group = f"{pod.namespace}/{gang.name}", gangs.group_of(pod)
        if group is None and key in gangs.groups:
            return  # the pod is not in the queue, but other members are: their domain applies
        if group is not None and key in gangs.domains:
            return
        gangs.domains.pop(key, None)
        if self._gang_refusal(key, request, gang, state) is not None:
            return
        choice = DomainSearch(scheduler, key, pod, () if group is None else list(group.members.values())).choose()
        if isinstance(choice, Refusal) and group is not None:
            group.refusal, choice = choice, None
        gangs.domains[key] = choice

    def waits(self, request: Request) -> Message:
        gang = request.pod.gang
        if gang is None or not gang.min_available:
            return Message("the PodGroup of the pod")
        if gang.topology is not None and gang.topology.required:
            template = "capacity for {n} members of the gang in one domain of {label} at the same time"
            return Message(template, n=gang.min_available, label=gang.topology.required[0])
        return Message("capacity for {n} members of the gang at the same time", n=gang.min_available)

    def permit(self, request: Request, row: int, room: WaitingPods) -> Allow | Wait | Refusal:
        gang, gangs = request.pod.gang, room.state.gangs
        if gang is None:
            return ALLOW
        key = f"{request.pod.namespace}/{gang.name}"
        members = gangs.placed[key]
        if len(members) >= gang.min_available:
            for member in members if room.pods else ():
                room.allow(member, _NAME)
            return ALLOW
        group = gangs.group_of(request.pod)
        if group is not None and len(members) + len(group.untried) < gang.min_available:
            group.refusal = _incomplete(key, gang, group, state=room.state)
            return group.refusal
        seconds = self.params.timeout_seconds if gang.timeout_seconds is None else gang.timeout_seconds
        late = _refusal(
            "GangTimedOut",
            Message(
                "gang {key}: the other members were not placed within {seconds} s", key=key, seconds=f"{seconds:g}"
            ),
        )
        return Wait(room.now_seconds + seconds, late)

    def missed(self, request: Request, room: WaitingPods, diagnose: Callable[[], Diagnosis]) -> None:
        pod, gangs = request.pod, room.state.gangs
        key, gang, group = gang_key(pod), pod.gang, gangs.group_of(pod)
        if key is None or gang is None:
            return
        placed = gangs.placed_members(key)
        if placed >= gang.min_available or (group is not None and group.refusal is not None):
            return
        if group is None:
            if (gang.min_available - placed) * 100 > self.params.gap_percent * gang.min_available:
                message = Message(
                    "gang {key} has {n} of {m} members placed: no node was found for {pod}",
                    key=key,
                    n=placed,
                    m=gang.min_available,
                    pod=pod.key,
                )
                self._reject_members(key, _refusal("GangIncomplete", message), room)
            return
        group.missed(pod, None if group.has_failed(pod.shape) else diagnose())
        if placed + len(group.untried) < gang.min_available:
            group.refusal = _incomplete(key, gang, group, state=room.state)
            self._reject_members(key, group.refusal, room)

    def withdrawn(self, request: Request, room: WaitingPods) -> None:
        key, gang, group = gang_key(request.pod), request.pod.gang, room.state.gangs.group_of(request.pod)
        if key is None or gang is None or room.state.gangs.placed_members(key) >= gang.min_available:
            return
        refusal = group.refusal if group is not None else None
        message = Message("gang {key}: the reservation of {pod} was released", key=key, pod=request.pod.key)
        self._reject_members(key, refusal or _refusal("GangIncomplete", message), room)

    def _reject_members(self, key: str, refusal: Refusal, room: WaitingPods) -> None:
        """Reject all waiting members and start the back-off of the gang."""
        for member in room.state.gangs.placed.get(key, ()) if room.pods else ():
            room.reject(member, (_NAME, refusal))
        if self.params.backoff_seconds:
            room.state.gangs.backoff_until[key] = room.now_seconds + self.params.backoff_seconds


_PRIORITIES = "gang {key}: its members have different priorities: {names}"
_SIZES = "gang {key}: its members state different gang sizes: {names}"
_TOPOLOGIES = "gang {key}: its members state different topology levels: {names}"
_NEVER_ROOM = (
    "gang {key} needs capacity for {n} members at the same time, but even the empty cluster has capacity for only {m}"
)
_NEVER_ROOM_FOR_MORE = (
    "gang {key} needs capacity for {n} more members at the same time, but even the empty cluster has capacity for "
    "only {m}"
)
_ROOM = "gang {key} needs capacity for {n} members at the same time, but the cluster has capacity for at most {m}"
_ROOM_FOR_MORE = (
    "gang {key} needs capacity for {n} more members at the same time, but the cluster has capacity for at most {m}"
)


def _refusal(
    code: str, message: Message, verdict: Verdict = Verdict.NOT_NOW, because: tuple[Reason, ...] = ()
) -> Refusal:
    return Refusal(code, message, verdict=verdict, because=because)


def _without_least_resources(key: str, gang: GangMember, state: ClusterState) -> Refusal | None:
    short = missing_resources(gang.min_resources, state)
    if not short:
        return None
    never = missing_resources(gang.min_resources, state, empty=True)
    if never:
        message = Message(
            "gang {key}: its minResources exceed the capacity of the empty cluster ({names})",
            key=key,
            names=joined(", ", never),
        )
        refusal = _refusal("GangMinResources", message, Verdict.NEVER_FITS)
        return msgspec.structs.replace(refusal, missing=never)
    message = Message(
        "gang {key}: the free capacity of the cluster is less than its minResources ({names})",
        key=key,
        names=joined(", ", short),
    )
    return msgspec.structs.replace(_refusal("GangMinResources", message), missing=short)


def _unresolvable(key: str, gang: GangMember, group: GangMembers, state: ClusterState) -> Refusal | None:
    """Return the reason why a registered gang cannot be placed, or None if the gang has to be tried."""
    members = group.members.values()
    for template, field, values in (
        (_PRIORITIES, "spec.priority", {pod.priority for pod in members}),
        (_SIZES, gang.min_field, {pod.gang.min_available for pod in members if pod.gang is not None}),
        (_TOPOLOGIES, wishes.REQUIRED_TOPOLOGY[1], {_levels(pod.gang) for pod in members if pod.gang is not None}),
    ):
        if len(values) > 1:
            message = Message(template, key=key, names=joined(", ", map(str, sorted(values))))
            return Refusal("GangMixed", message, field=field, verdict=Verdict.MISCONFIGURED)
    placed = state.gangs.placed_members(key)
    if placed >= gang.min_available:
        return None
    existing = _existing(key, group, state)
    if existing < gang.min_available:
        message = Message("gang {key} has {n} of {m} members", key=key, n=existing, m=gang.min_available)
        wrong = [Message("{pod} is misconfigured", pod=group.unfit[0])] if group.unfit else []
        return _refusal("GangTooSmall", joined("; ", [message, *wrong]))
    refusal = None if placed else _without_least_resources(key, gang, state)
    if refusal is not None:
        return refusal
    lacking = gang.min_available - placed
    room = slots_for(group.members.values(), state)
    if room >= lacking:
        return None
    most = slots_for(group.members.values(), state, empty=True)
    if most < lacking:
        message = Message(_NEVER_ROOM_FOR_MORE if placed else _NEVER_ROOM, key=key, n=lacking, m=most)
        return _refusal("GangTooBig", message, Verdict.NEVER_FITS)
    refusal = _refusal("GangTooBig", Message(_ROOM_FOR_MORE if placed else _ROOM, key=key, n=lacking, m=room))
    return msgspec.structs.replace(refusal, resolvable=True)


def _levels(gang: GangMember) -> str:
    """Format the topology levels of a member: `required rack`, `preferred host,rack` or `none`."""
    if gang.topology is None:
        return "none"
    parts = ("preferred", gang.topology.preferred), ("required", gang.topology.required)
    return " ".join(f"{name} {','.join(levels)}" for name, levels in parts if levels)


def _incomplete(key: str, gang: GangMember, group: GangMembers, *, state: ClusterState) -> Refusal:
    """Describe the member on which a gang failed, and why no node was found for it."""
    placed = state.gangs.placed_members(key)
    message = Message("gang {key}: {n} of {m} members could be placed", key=key, n=placed, m=gang.min_available)
    because: tuple[Reason, ...] = ()
    if group.breaker is not None:
        member, diagnosis = group.breaker
        because = _foremost(diagnosis.recorded)
        why = diagnosis.summary if because else Message("no node was found for {pod}", pod=member)
        message = joined("; ", [message, why])
    never = _existing(key, group, state) - len(group.never) < gang.min_available
    return _refusal("GangIncomplete", message, Verdict.NEVER_FITS if never else Verdict.NOT_NOW, because)


def _foremost(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """Return the most important reasons, sorted by number of nodes.

    Reasons of nodes that could become feasible are selected before other reasons.
    """
    ranked = sorted(reasons, key=lambda reason: (not reason.candidates, -reason.nodes))
    return tuple(sorted(ranked[:_TOP_REASONS], key=lambda reason: -reason.nodes))


def _existing(key: str, group: GangMembers, state: ClusterState) -> int:
    return len(state.gangs.placed.get(key, set()) | group.members.keys())
