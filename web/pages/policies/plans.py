"""Planned activations as text: trigger, version and result."""

from __future__ import annotations

from typing import Any

from django.utils.formats import date_format
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from hetsched.policies.models import Policy, PolicyPlan

METRICS = {
    "gpuAllocation": gettext_lazy("GPU allocation (0–1)"),
    "cpuUtilization": gettext_lazy("CPU requested (0–1)"),
    "memoryUtilization": gettext_lazy("Memory requested (0–1)"),
    "balance": gettext_lazy("Balance (0–1)"),
    "pendingPods": gettext_lazy("Pending pods (number)"),
}
_STATES = {
    PolicyPlan.WAITING: gettext_lazy("scheduled"),
    PolicyPlan.DONE: gettext_lazy("done"),
    PolicyPlan.REFUSED: gettext_lazy("refused"),
    PolicyPlan.SKIPPED: gettext_lazy("skipped"),
    PolicyPlan.OFF: gettext_lazy("disabled"),
}


def plan_rows(policy: Policy) -> list[dict[str, Any]]:
    """Return the plans of a policy with their texts."""
    rows = PolicyPlan.objects.filter(policy=policy)
    return [
        {
            "plan": plan,
            "when": when(plan),
            "state": _STATES.get(plan.state, plan.state),
            "value": "" if plan.last_value is None else f"{plan.last_value:.3g}",
        }
        for plan in rows
    ]


def when(plan: PolicyPlan) -> str:
    """Describe the trigger and the version of a plan."""
    if plan.once is not None:
        at = date_format(localtime(plan.once.at), "Y-m-d H:i e")
        return _("v%(version)d at %(at)s") % {"version": plan.once.version, "at": at}
    condition = plan.condition
    if condition is None:
        return ""
    return _(
        "%(cluster)s, %(metric)s: above %(above)g v%(high)d, below %(below)g v%(low)d, for %(minutes)d min"
    ) % {
        "cluster": condition.cluster,
        "metric": METRICS[condition.metric],
        "above": condition.above,
        "high": condition.above_version,
        "below": condition.below,
        "low": condition.below_version,
        "minutes": condition.minutes,
    }  # fmt: skip
