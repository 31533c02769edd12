"""The only writers of plans: scheduled or metric-driven activations of policy versions, and their results.

Plans activate another policy without an operator, for example at night or while nearly all GPUs are in use.
A plan calls `activate` under its own name, on behalf of its author. Golden placements apply, and the reason names the
plan and the metric. Rejected, skipped or late activations are recorded on the plan and in the audit trail.
An activation at a set time may be up to `late_minutes` late and is skipped after that. A run claims a plan by advancing
its due time. If a run crashes, it is repeated; this is safe because activating the active version changes nothing. The
result is saved only if the plan was not changed or removed in the meantime; a changed plan restarts.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
import structlog
from django.db.models import Q
from django.utils import timezone

from hetsched.contracts.documents import to_plain
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, joined, shortened
from hetsched.contracts.times import rfc3339
from hetsched.inventory.actions import check_name, require_reason
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import Actor, Program, record
from hetsched.journal.publish import publish_many
from hetsched.storage.named_locks import lock
from hetsched.storage.write_lock import write_transaction

from .actions import activate, policy_unknown_error, record_refused_activation, version_unknown_error
from .documents import PLANS, plan_document
from .golden_checks import check_goldens
from .hysteresis import HysteresisState, Side, Switch, enter_side, past_switches, process_sample, version_of
from .models import Measure, Policy, PolicyPlan
from .plan_contracts import Condition, Once

MOST_PLANS = 200
RESERVED = frozenset({"preview"})  # this name is used in an API path
LOOK_EVERY = timedelta(minutes=1)
FRESH = timedelta(minutes=3)
CURVE = timedelta(days=7)
FARTHEST = timedelta(days=3660)
_SWITCHES = {
    "above": "{metric} of {cluster} is {value}, above {bound} for {n} minutes",
    "below": "{metric} of {cluster} is {value}, below {bound} for {n} minutes",
}
log = structlog.get_logger(__name__)


def save_plan(
    name: str,
    *,
    policy_name: str,
    once: Once | None = None,
    condition: Condition | None = None,
    enabled: bool = True,
    creates: bool = False,
    actor: Actor,
    reason: str,
    now: datetime | None = None,
) -> PolicyPlan:
    """Create or change a plan and reset its state; the plan's `note` lists what currently prevents its activation.

    With `creates`, a plan of this name must not exist yet.
    Raises: InputError `ReasonMissing`, `PlanNameInvalid`, `PlanInvalid`, `PlanExists`, `PlansTooMany`, `PolicyUnknown`,
    `PolicyKeptInCluster`, `PolicyVersionUnknown` or `ClusterUnknown`.
    """
    reason, now = require_reason(reason), now or timezone.now()
    check_name(name, "PlanNameInvalid", reserved=RESERVED)
    policy = Policy.objects.select_related("keeper").filter(name=policy_name).first()
    if policy is None:
        raise policy_unknown_error(policy_name)
    if policy.keeper is not None:
        keeper = Message("cluster {cluster}", cluster=policy.keeper.name)
        message = Message("policy {name} is managed in {text}", name=policy_name, text=keeper)
        raise InputError("PolicyKeptInCluster", message)
    cluster = _check(policy, once, condition, now)
    with write_transaction():
        if creates:
            lock(["policy plans"])
        row = PolicyPlan.objects.select_for_update().filter(name=name).first()
        new = row is None
        if creates and not new:
            raise InputError("PlanExists", Message("plan {name} already exists", name=name), place="name")
        if row is None:
            if PolicyPlan.objects.count() >= MOST_PLANS:
                message = Message("the maximum of {n} plans is reached", n=MOST_PLANS)
                raise InputError("PlansTooMany", message, place="name")
            row = PolicyPlan(name=name)
        was_enabled = row.enabled if not new else None
        row.policy, row.cluster, row.once, row.condition = policy, cluster, once, condition
        row.enabled, row.author, row.reason, row.changed_at = enabled, actor.name, reason, now
        _restart(row, now)
        row.note = _obstacles(policy, once, condition)
        row.save()
        details = {"policy": policy_name, "enabled": enabled, **_audit_details(once, condition)}
        action = "plan.add" if new else "plan.change"
        if was_enabled is not None and was_enabled is not enabled:
            action = "plan.enable" if enabled else "plan.disable"
        record(
            actor=actor.name, role=actor.role, action=action, obj=("plan", name), reason=reason, details=details
        )  # fmt: skip
        _publish(row)
    return row


def remove_plan(name: str, *, actor: Actor, reason: str) -> None:
    """Remove a plan without changing the active version. Raises: InputError `PlanUnknown` or `ReasonMissing`."""
    reason = require_reason(reason)
    with write_transaction():
        row = PolicyPlan.objects.select_for_update().filter(name=name).first()
        if row is None:
            raise InputError("PlanUnknown", Message("unknown plan {name}", name=repr(name[:80])), place="name")
        row.delete()
        record(actor=actor.name, role=actor.role, action="plan.remove", obj=("plan", name), reason=reason)
        publish_many({PLANS: {name: None}})


def _check(policy: Policy, once: Once | None, condition: Condition | None, now: datetime) -> Cluster | None:
    """Validate a plan; return the cluster of its condition, or None if it has no condition."""
    if (once is None) is (condition is None):
        raise InputError("PlanInvalid", "a plan requires either a time or a condition", place="once")
    if once is not None:
        if once.at <= now:
            message = Message("{time} is in the past", time=once.at.isoformat())
            raise InputError("PlanInvalid", message, place="once.at")
        if once.at > now + FARTHEST:
            raise InputError("PlanInvalid", "the time is more than ten years in the future", place="once.at")
        _check_versions(policy, {once.version: "once.version"})
        return None
    assert condition is not None
    if not condition.below < condition.above:
        message = Message(
            "{text} is not less than the upper bound {value}", text=f"{condition.below:g}", value=f"{condition.above:g}"
        )
        raise InputError(
            "PlanInvalid", message, place="condition.below", hint="Use a lower value to prevent frequent switches"
        )
    most = float("inf") if condition.metric == "pendingPods" else 1.0
    if condition.below < 0 or condition.above > most:
        message = Message("{name} must be between {low} and {high}", name=condition.metric, low=0, high=f"{most:g}")
        raise InputError("PlanInvalid", message, place="condition.above")
    if condition.above_version == condition.below_version:
        raise InputError("PlanInvalid", "both versions are the same", place="condition.belowVersion")
    _check_versions(
        policy, {condition.above_version: "condition.aboveVersion", condition.below_version: "condition.belowVersion"}
    )
    cluster = Cluster.objects.filter(name=condition.cluster).first()
    if cluster is None:
        message = Message("unknown cluster {name}", name=repr(condition.cluster[:80]))
        raise InputError("ClusterUnknown", message, place="condition.cluster")
    return cluster


def _check_versions(policy: Policy, wanted: dict[int, str]) -> None:
    known = set(policy.revisions.filter(version__in=wanted).values_list("version", flat=True))
    for version, place in wanted.items():
        if version not in known:
            raise version_unknown_error(policy.name, version, place=place)


def _obstacles(policy: Policy, once: Once | None, condition: Condition | None) -> Message:
    """Return a note about the golden placements that the plan's versions currently break."""
    versions = _versions(once, condition)
    problems: list[Message] = []
    for revision in policy.revisions.filter(version__in=versions).order_by("version"):
        broken = [verdict.golden for verdict in check_goldens(revision.spec).results if verdict.state == "broken"]
        if broken:
            names = joined(", ", broken[:5])
            template = "version {version} cannot be activated now: it breaks {names}"
            problems.append(Message(template, version=revision.version, names=names))
    return joined("; ", problems)


def _versions(once: Once | None, condition: Condition | None) -> set[int]:
    if once is not None:
        return {once.version}
    return {condition.above_version, condition.below_version} if condition is not None else set()


def _audit_details(once: Once | None, condition: Condition | None) -> dict[str, object]:
    return {"once": to_plain(once)} if once else {"condition": to_plain(condition)}


def _restart(row: PolicyPlan, now: datetime) -> None:
    row.state = PolicyPlan.WAITING if row.enabled else PolicyPlan.OFF
    row.due_at = row.once.at if row.once else now
    row.side, row.above_since, row.below_since, row.last_looked_at, row.last_value = "", None, None, None, None


def _publish(row: PolicyPlan) -> None:
    publish_many({PLANS: lambda: {row.name: plan_document(row)}})


# -- periodic evaluation -----------------------------------------------------------------------------------------------


def evaluate_plans(now: datetime | None = None) -> int:
    """Evaluate all due plans, claiming each one first; return the number of plans that activated a version."""
    now = now or timezone.now()
    due = Q(state=PolicyPlan.WAITING) | Q(condition__isnull=False)
    switched = 0
    for pk, at in PolicyPlan.objects.filter(due, enabled=True, due_at__lte=now).values_list("pk", "due_at"):
        if PolicyPlan.objects.filter(pk=pk, due_at=at, enabled=True).update(due_at=now + LOOK_EVERY):
            try:
                switched += _evaluate(pk, now)
            except Exception:  # one failing plan must not block the other plans
                log.exception("policy plan evaluation failed", plan=pk)
    return switched


def _evaluate(pk: int, now: datetime) -> bool:
    """Evaluate a claimed plan; return whether it activated a version."""
    row = PolicyPlan.objects.select_related("policy", "cluster").get(pk=pk)
    return _evaluate_once(row, now) if row.once is not None else _evaluate_condition(row, now)


def _evaluate_once(row: PolicyPlan, now: datetime) -> bool:
    """Activate the version of a plan with a set time, or record why it was not activated."""
    assert row.once is not None
    late_minutes = int((now - row.once.at).total_seconds() // 60)
    if late_minutes > row.once.late_minutes:
        note = Message(
            "skipped: the set time was missed by {n} minutes, and the maximum is {m} minutes",
            n=late_minutes,
            m=row.once.late_minutes,
        )
        _conclude(row, PolicyPlan.SKIPPED, note, now, action="plan.skipped")
        return False
    why = Message("at {time}", time=rfc3339(row.once.at))
    if late_minutes > 1:
        why = Message("at {time}, {n} minutes late", time=rfc3339(row.once.at), n=late_minutes)
    return _activate(row, row.once.version, why, now, done=PolicyPlan.DONE)


def _evaluate_condition(row: PolicyPlan, now: datetime) -> bool:
    """Process the latest sample; if it makes the condition enter a side, activate the version of that side."""
    condition = row.condition
    assert condition is not None
    latest = Measure.objects.filter(cluster=row.cluster, at__gt=now - FRESH, at__lte=now).order_by("-at").first()
    value = latest.figures.of(condition.metric) if latest is not None else None
    if value is None:
        row.note = Message("no fresh sample")
        if latest is not None:
            row.note = Message("the latest sample of the cluster has no value for {metric}", metric=condition.metric)
        row.last_value = None
        return _save_state(row, HysteresisState(side=_side(row)), now)
    row.last_value = value
    watch, side = process_sample(condition, _hysteresis_state(row), now, value)
    if not side:
        return _save_state(row, watch, now)
    why = Message(
        _SWITCHES[side],
        metric=condition.metric,
        cluster=condition.cluster,
        value=f"{value:.4g}",
        bound=f"{condition.above if side == 'above' else condition.below:g}",
        n=condition.minutes,
    )
    activated = _activate(row, version_of(condition, side), why, now, done=PolicyPlan.WAITING)
    if row.state == PolicyPlan.REFUSED:
        _save_state(
            row, HysteresisState(side=watch.side, looked_at=now), now
        )  # the period restarts before the next attempt
    else:
        _save_state(row, enter_side(watch, side), now)
    return activated


def _hysteresis_state(row: PolicyPlan) -> HysteresisState:
    return HysteresisState(_side(row), row.above_since, row.below_since, row.last_looked_at)


def _side(row: PolicyPlan) -> Side:
    return "above" if row.side == "above" else "below" if row.side == "below" else ""


def _save_state(row: PolicyPlan, watch: HysteresisState, now: datetime) -> bool:
    """Save the hysteresis state of a plan; return False because no version was activated."""
    row.side, row.above_since, row.below_since, row.last_looked_at = (
        watch.side, watch.above_since, watch.below_since, now,
    )  # fmt: skip
    _save(row, "side", "above_since", "below_since", "last_looked_at", "last_value", "note")
    return False


def _activate(row: PolicyPlan, version: int, why: Message, now: datetime, *, done: str) -> bool:
    """Activate a version on behalf of the plan's author; record the result on the plan."""
    actor = Program(f"plan {row.name} by {row.author}"[:255], "plan")
    reason = Message("{text} (plan {name}: {detail})", text=row.reason, name=row.name, detail=why)
    active = Policy.objects.values_list("active_version", flat=True).get(pk=row.policy_id)
    if active == version:
        _conclude(
            row, done, Message("version {version} was already active: {detail}", version=version, detail=why), now
        )
        return False
    try:
        activate(row.policy.name, version, actor=actor, reason=reason, expected_active=active)
    except InputError as refusal:
        with write_transaction():
            record_refused_activation(row.policy.name, version, refusal, actor=actor, reason=reason)
            note = Message("version {version} was not activated: {detail}", version=version, detail=refusal.message)
            _conclude(row, PolicyPlan.REFUSED, note, now)
        return False
    row.last_switched_at = now
    _conclude(row, done, Message("activated version {version}: {detail}", version=version, detail=why), now)
    return True


def _conclude(row: PolicyPlan, state: str, note: Message, now: datetime, *, action: str = "") -> None:
    row.state, row.note, row.last_looked_at = state, shortened(note, 1000), now
    with write_transaction():
        if _save(row, "state", "note", "last_looked_at", "last_switched_at") and action:
            record(actor=f"plan {row.name}", role="plan", action=action, obj=("plan", row.name), reason=note)


def _save(row: PolicyPlan, *columns: str) -> bool:
    """Save the result of a plan; if the plan was changed or removed in the meantime, write nothing and return False."""
    with write_transaction():
        same = PolicyPlan.objects.filter(pk=row.pk, changed_at=row.changed_at)
        if not same.update(**{name: getattr(row, name) for name in columns}):
            return False
        _publish(row)
    return True


# -- recorded curve ----------------------------------------------------------------------------------------------------


class Forecast(msgspec.Struct, frozen=True):
    """The switches that a condition would have caused on recorded samples; `known` is false if there are too few."""

    known: bool
    samples: int
    start: datetime | None
    end: datetime | None
    switches: list[Switch]
    note: Message


def forecast_switches(condition: Condition, *, now: datetime | None = None) -> Forecast:
    """Evaluate a condition on the samples of the last week, without writing."""
    now = now or timezone.now()
    rows = Measure.objects.filter(cluster__name=condition.cluster, at__gt=now - CURVE, at__lte=now).order_by("at")
    figures = [(row.at, row.figures.of(condition.metric)) for row in rows.iterator(2000)]
    curve = [(at, value) for at, value in figures if value is not None]
    if len(curve) <= condition.minutes:
        note = Message("no samples are recorded")
        if figures:
            note = Message("only {n} samples are recorded", n=len(curve))
        return Forecast(False, len(curve), None, None, [], note)
    found = past_switches(condition, curve)
    template = "the plan would have switched the policy {n} times between {start} and {end}"
    if len(found) == 1:
        template = "the plan would have switched the policy once between {start} and {end}"
    note = Message(template, n=len(found), start=rfc3339(curve[0][0]), end=rfc3339(curve[-1][0]))
    return Forecast(True, len(curve), curve[0][0], curve[-1][0], found, note)
