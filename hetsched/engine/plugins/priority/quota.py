"""Keep every team within its quota, and let it borrow the unused quota of other teams.

Rule, per requested resource, where `used` is the sum over the placed pods of the namespace:
    used + request > max                       rejected, `QuotaMaxExceeded`; a request above max never fits
    sum of used + request > sum of min         rejected, `QuotaBorrowingExhausted`: all guaranteed quota is used; a
                                               request above the sum of min never fits
Pods of namespaces without an ElasticQuota are ignored. The plugin `preemption` reclaims borrowed quota.
Source: scheduler-plugins, KEP-9 "Capacity scheduling"; the sums are those of `engine.cluster.quotas`.
"""

from __future__ import annotations

from collections.abc import Callable

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.message import Message
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.units import format_amount
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.extension_points import Scope
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import SKIP, Refusal, Skip


@plugin(
    "quota",
    summary="A namespace with an ElasticQuota stays within its maximum and borrows only unused capacity.",
    scope=Scope.CLUSTER,
    helped_by=frozenset({Event.QUOTA_CHANGED, Event.POD_RELEASED}),
)
class Quota:
    def handled_pods(self, state: ClusterState) -> Callable[[PodSpec], bool] | None:
        return state.quotas.applies_to if state.quotas.limits else None

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip | Refusal:
        quotas, pod = state.quotas, request.pod
        if not quotas.applies_to(pod):
            return SKIP
        over = quotas.over_max(pod.namespace, request.shape.requests)
        if over:
            never = bool(quotas.over_max(pod.namespace, request.shape.requests, empty=True))
            most, used = dict(quotas.limits[pod.namespace].max), quotas.used[pod.namespace]
            verdict = Verdict.NEVER_FITS if never else None
            text = _sums(request, {name: (used.get(name, 0), most[name]) for name in over})
            message = Message(
                "quota {name} of {namespace} would be exceeded: {text}",
                name=quotas.limits[pod.namespace].name,
                namespace=pod.namespace,
                text=text,
            )
            return Refusal("QuotaMaxExceeded", message, over, resolvable=not never, verdict=verdict)
        short = quotas.exhausted(request.shape.requests)
        if short:
            shared = quotas.shared
            text = _sums(request, {name: (shared[name] - quotas.remaining(name), shared[name]) for name in short})
            name = quotas.limits[pod.namespace].name
            message = Message(
                "quota {name} of {namespace} cannot borrow more, because the guaranteed resources of all quotas are "
                "in use: {text}",
                name=name,
                namespace=pod.namespace,
                text=text,
            )
            never = any(request.shape.request(resource) > shared[resource] for resource in short)
            verdict = Verdict.NEVER_FITS if never else None
            return Refusal("QuotaBorrowingExhausted", message, short, resolvable=not never, verdict=verdict)
        return None

    def waits(self, request: Request) -> Message:
        asked = ", ".join(f"{name} {format_amount(name, amount)}" for name, amount in request.shape.requests if amount)
        return Message("the quota of {namespace} to have {text} left", namespace=request.pod.namespace, text=asked)


def _sums(request: Request, amounts: dict[str, tuple[int, int]]) -> str:
    """Format the use, request and limit of every resource, such as `cpu 6 + 2 of 6`."""
    parts = []
    for name, (used, limit) in amounts.items():
        asked = request.shape.request(name)
        written = (format_amount(name, amount) for amount in (used, asked, limit))
        parts.append("{} {} + {} of {}".format(name, *written))
    return ", ".join(parts)
