"""The only writers of plans: when which version of a policy is to decide, and what became of that.

Problem: somebody wants another policy at night, or while the cards are nearly all taken, and wants to sleep.
Rule: a plan activates by `activate`, as a program of its own name and on behalf of its author: golden placements hold,
the reason says which plan and which figure. What is refused, skipped or late is told on the plan and in the audit.
A time that was missed is made up for within `late_minutes`, else skipped. A look claims a plan by setting forward when
it is due; one that dies in between is repeated, and activating what is active already changes nothing. What became of a
plan is written only where nobody changed or removed it meanwhile: a changed plan starts anew.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import msgspec
import structlog
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from hetsched.contracts.errors import InputError
from hetsched.contracts.times import rfc3339
from hetsched.inventory.actions import require_reason
from hetsched.inventory.models import DNS_LABEL, Cluster
from hetsched.journal.audit import Actor, Program, record
from hetsched.journal.publish import publish_many

from .actions import activate, known_policies, note_refused
from .documents import PLANS, plan_document
from .golden_checks import check_goldens
from .hysteresis import Switch, Watch, Way, entered, look, switches, version_of
from .models import Measure, Policy, PolicyPlan
from .plan_contracts import Condition, Once

MOST_PLANS = 200
RESERVED = frozenset({"preview"})  # its address is taken
LOOK_EVERY = timedelta(minutes=1)
FRESH = timedelta(minutes=3)
CURVE = timedelta(days=7)
FARTHEST = timedelta(days=3660)
log = structlog.get_logger(__name__)


def save_plan(
    name: str,
    *,
    policy_name: str,
    once: Once | None = None,
    condition: Condition | None = None,
    enabled: bool = True,
    actor: Actor,
    reason: str,
    now: datetime | None = None,
) -> PolicyPlan:
    """Make a plan, or change one; it starts anew then. Its note says what already stands in its way.

    Raises: InputError `ReasonMissing`, `PlanNameInvalid`, `PlanInvalid`, `PlansTooMany`, `PolicyUnknown`,
    `PolicyKeptInCluster`, `PolicyVersionUnknown` or `ClusterUnknown`.
    """
    reason, now = require_reason(reason), now or timezone.now()
    if not re.fullmatch(DNS_LABEL.regex, name) or name in RESERVED:
        raise InputError("PlanNameInvalid", f"{name[:80]!r} is no name", place="name", hint=str(DNS_LABEL.message))
    policy = Policy.objects.select_related("keeper").filter(name=policy_name).first()
    if policy is None:
        message = f"there is no policy {policy_name[:80]!r}"
        raise InputError("PolicyUnknown", message, place="policy", hint=known_policies())
    if policy.keeper is not None:
        raise InputError("PolicyKeptInCluster", f"policy {policy_name} is kept in cluster {policy.keeper.name}")
    cluster = _check(policy, once, condition, now)
    with transaction.atomic():
        row = PolicyPlan.objects.select_for_update().filter(name=name).first()
        new = row is None
        if row is None:
            if PolicyPlan.objects.count() >= MOST_PLANS:
                raise InputError("PlansTooMany", f"there are {MOST_PLANS} plans", place="name")
            row = PolicyPlan(name=name)
        was_enabled = row.enabled if not new else None
        row.policy, row.cluster, row.once, row.condition = policy, cluster, once, condition
        row.enabled, row.author, row.reason, row.changed_at = enabled, actor.name, reason, now
        _start_anew(row, now)
        row.note = _in_its_way(policy, once, condition)
        row.save()
        details = {"policy": policy_name, "enabled": enabled, **_said(once, condition)}
        action = "plan.add" if new else "plan.change"
        if was_enabled is not None and was_enabled is not enabled:
            action = "plan.enable" if enabled else "plan.disable"
        record(
            actor=actor.name, role=actor.role, action=action, obj=("plan", name), reason=reason, details=details
        )  # fmt: skip
        _publish(row)
    return row


def remove_plan(name: str, *, actor: Actor, reason: str) -> None:
    """Take a plan away; what it activated stays. Raises: InputError `PlanUnknown` or `ReasonMissing`."""
    reason = require_reason(reason)
    with transaction.atomic():
        row = PolicyPlan.objects.select_for_update().filter(name=name).first()
        if row is None:
            raise InputError("PlanUnknown", f"there is no plan {name[:80]!r}", place="name")
        row.delete()
        record(actor=actor.name, role=actor.role, action="plan.remove", obj=("plan", name), reason=reason)
        publish_many({PLANS: {name: None}})


def _check(policy: Policy, once: Once | None, condition: Condition | None, now: datetime) -> Cluster | None:
    """Return the cluster whose figure it goes by, if it goes by one."""
    if (once is None) is (condition is None):
        raise InputError("PlanInvalid", "a plan has either a time or a condition", place="once")
    if once is not None:
        if once.at <= now:
            raise InputError("PlanInvalid", f"{once.at.isoformat()} is over", place="once.at")
        if once.at > now + FARTHEST:
            raise InputError("PlanInvalid", "it is more than ten years on", place="once.at")
        _check_versions(policy, {once.version: "once.version"})
        return None
    assert condition is not None
    if not condition.below < condition.above:
        message = f"{condition.below:g} is not less than {condition.above:g}"
        raise InputError(
            "PlanInvalid", message, place="condition.below", hint="Leave room, or it switches all the time"
        )
    most = float("inf") if condition.metric == "pendingPods" else 1.0
    if condition.below < 0 or condition.above > most:
        raise InputError("PlanInvalid", f"{condition.metric} is from 0 to {most:g}", place="condition.above")
    if condition.above_version == condition.below_version:
        raise InputError("PlanInvalid", "both sides have the same version", place="condition.belowVersion")
    _check_versions(
        policy, {condition.above_version: "condition.aboveVersion", condition.below_version: "condition.belowVersion"}
    )
    cluster = Cluster.objects.filter(name=condition.cluster).first()
    if cluster is None:
        message = f"there is no cluster {condition.cluster[:80]!r}"
        raise InputError("ClusterUnknown", message, place="condition.cluster")
    return cluster


def _check_versions(policy: Policy, wanted: dict[int, str]) -> None:
    known = set(policy.revisions.filter(version__in=wanted).values_list("version", flat=True))
    for version, place in wanted.items():
        if version not in known:
            message = f"policy {policy.name} has no version {version}"
            raise InputError("PolicyVersionUnknown", message, place=place)


def _in_its_way(policy: Policy, once: Once | None, condition: Condition | None) -> str:
    """Say which golden placements its versions would break as things are."""
    versions = _versions(once, condition)
    told = []
    for revision in policy.revisions.filter(version__in=versions).order_by("version"):
        broken = [one.golden for one in check_goldens(revision.spec).results if one.state == "broken"]
        if broken:
            told.append(f"version {revision.version} would be refused now: it breaks {', '.join(broken[:5])}")
    return "; ".join(told)[:1000]


def _versions(once: Once | None, condition: Condition | None) -> set[int]:
    if once is not None:
        return {once.version}
    return {condition.above_version, condition.below_version} if condition is not None else set()


def _said(once: Once | None, condition: Condition | None) -> dict[str, object]:
    return {"once": msgspec.to_builtins(once)} if once else {"condition": msgspec.to_builtins(condition)}


def _start_anew(row: PolicyPlan, now: datetime) -> None:
    row.state = PolicyPlan.WAITING if row.enabled else PolicyPlan.OFF
    row.due_at = row.once.at if row.once else now
    row.side, row.above_since, row.below_since, row.last_looked_at, row.last_value = "", None, None, None, None


def _publish(row: PolicyPlan) -> None:
    publish_many({PLANS: lambda: {row.name: plan_document(row)}})


# -- the look ----------------------------------------------------------------------------------------------------------


def look_at_plans(now: datetime | None = None) -> int:
    """Look at all plans that are due, each claimed by one look; return how many activated something."""
    now = now or timezone.now()
    due = Q(state=PolicyPlan.WAITING) | Q(condition__isnull=False)
    switched = 0
    for pk, at in PolicyPlan.objects.filter(due, enabled=True, due_at__lte=now).values_list("pk", "due_at"):
        if PolicyPlan.objects.filter(pk=pk, due_at=at, enabled=True).update(due_at=now + LOOK_EVERY):
            try:
                switched += _look(pk, now)
            except Exception:  # it keeps no other from its turn
                log.exception("a plan could not be looked at", plan=pk)
    return switched


def _look(pk: int, now: datetime) -> bool:
    """Look at a plan that was claimed; return whether it activated something."""
    row = PolicyPlan.objects.select_related("policy", "cluster").get(pk=pk)
    return _look_once(row, now) if row.once is not None else _look_by_figure(row, now)


def _look_once(row: PolicyPlan, now: datetime) -> bool:
    """Activate at its time, or say why not."""
    assert row.once is not None
    late_minutes = int((now - row.once.at).total_seconds() // 60)
    if late_minutes > row.once.late_minutes:
        note = f"skipped: nobody looked for {late_minutes} minutes, {row.once.late_minutes} are allowed"
        _conclude(row, PolicyPlan.SKIPPED, note, now, action="plan.skipped")
        return False
    why = f"at {rfc3339(row.once.at)}" + (f", {late_minutes} minutes late" if late_minutes > 1 else "")
    return _activate(row, row.once.version, why, now, done=PolicyPlan.DONE)


def _look_by_figure(row: PolicyPlan, now: datetime) -> bool:
    """Take in the latest figure, and change sides where it is time to."""
    condition = row.condition
    assert condition is not None
    latest = Measure.objects.filter(cluster=row.cluster, at__gt=now - FRESH, at__lte=now).order_by("-at").first()
    value = latest.figures.of(condition.metric) if latest is not None else None
    if value is None:
        row.note = "no fresh figure" if latest is None else f"the cluster has no {condition.metric}"
        row.last_value = None
        return _write(row, Watch(side=_side(row)), now)
    row.last_value = value
    watch, side = look(condition, _watch(row), now, value)
    if not side:
        return _write(row, watch, now)
    bound, word = (condition.above, "above") if side == "above" else (condition.below, "below")
    why = f"{condition.metric} of {condition.cluster} is {value:.4g}, {word} {bound:g} for {condition.minutes} minutes"
    activated = _activate(row, version_of(condition, side), why, now, done=PolicyPlan.WAITING)
    if row.state == PolicyPlan.REFUSED:
        _write(row, Watch(side=watch.side, looked_at=now), now)  # the time starts anew before it is tried again
    else:
        _write(row, entered(watch, side), now)
    return activated


def _watch(row: PolicyPlan) -> Watch:
    return Watch(_side(row), row.above_since, row.below_since, row.last_looked_at)


def _side(row: PolicyPlan) -> Way:
    return "above" if row.side == "above" else "below" if row.side == "below" else ""


def _write(row: PolicyPlan, watch: Watch, now: datetime) -> bool:
    """Write what is known of the figure."""
    row.side, row.above_since, row.below_since, row.last_looked_at = (
        watch.side, watch.above_since, watch.below_since, now,
    )  # fmt: skip
    _keep(row, "side", "above_since", "below_since", "last_looked_at", "last_value", "note")
    return False


def _activate(row: PolicyPlan, version: int, why: str, now: datetime, *, done: str) -> bool:
    """Have a version decide, on behalf of the plan's author; say on the plan what became of it."""
    actor = Program(f"plan {row.name} by {row.author}"[:255], "plan")
    reason = f"{row.reason} (plan {row.name}: {why})"
    active = Policy.objects.values_list("active_version", flat=True).get(pk=row.policy_id)
    if active == version:
        _conclude(row, done, f"version {version} decided already: {why}", now)
        return False
    try:
        activate(row.policy.name, version, actor=actor, reason=reason, expected_active=active)
    except InputError as refusal:
        with transaction.atomic():
            note_refused(row.policy.name, version, refusal, actor=actor, reason=reason)
            _conclude(row, PolicyPlan.REFUSED, f"version {version} was refused: {refusal.message}"[:1000], now)
        return False
    row.last_switched_at = now
    _conclude(row, done, f"activated version {version}: {why}", now)
    return True


def _conclude(row: PolicyPlan, state: str, note: str, now: datetime, *, action: str = "") -> None:
    row.state, row.note, row.last_looked_at = state, note[:1000], now
    with transaction.atomic():
        if _keep(row, "state", "note", "last_looked_at", "last_switched_at") and action:
            record(actor=f"plan {row.name}", role="plan", action=action, obj=("plan", row.name), reason=note)


def _keep(row: PolicyPlan, *columns: str) -> bool:
    """Write what became of a plan; False, and nothing is written, where somebody changed or removed it meanwhile."""
    with transaction.atomic():
        same = PolicyPlan.objects.filter(pk=row.pk, changed_at=row.changed_at)
        if not same.update(**{name: getattr(row, name) for name in columns}):
            return False
        _publish(row)
    return True


# -- on the recorded curve ---------------------------------------------------------------------------------------------


class Forecast(msgspec.Struct, frozen=True):
    """What a condition would have done lately; not `known` where too few figures were recorded."""

    known: bool
    samples: int
    start: datetime | None
    end: datetime | None
    switches: list[Switch]
    note: str


def forecast_switches(condition: Condition, *, now: datetime | None = None) -> Forecast:
    """Try a condition on the figures of the last week; nothing is written."""
    now = now or timezone.now()
    rows = Measure.objects.filter(cluster__name=condition.cluster, at__gt=now - CURVE, at__lte=now).order_by("at")
    figures = [(row.at, row.figures.of(condition.metric)) for row in rows.iterator(2000)]
    curve = [(at, value) for at, value in figures if value is not None]
    if len(curve) <= condition.minutes:
        note = "no figures were recorded" if not figures else f"only {len(curve)} figures were recorded"
        return Forecast(False, len(curve), None, None, [], note)
    found = switches(condition, curve)
    times = "once" if len(found) == 1 else f"{len(found)} times"
    note = f"it would have switched {times} between {rfc3339(curve[0][0])} and {rfc3339(curve[-1][0])}"
    return Forecast(True, len(curve), curve[0][0], curve[-1][0], found, note)
