"""Feature gates of workloads: those in effect on the API server, and the arguments that set gates of kube-scheduler.

Gates of the API server cannot be changed by the benchmark. Gates named `Scheduler…` belong to kube-scheduler alone.
Source: metric kubernetes_feature_enabled; setupTestCase in test/integration/scheduler_perf/scheduler_perf.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hetsched.adapters.kubernetes.api import Api

from .configuration import Unsupported

_METRIC = re.compile(r'^kubernetes_feature_enabled\{name="(\w+)",stage="\w*"\} ([01])', re.MULTILINE)
_QUEUEING_HINTS = "SchedulerQueueingHints"
# The last version in which SchedulerQueueingHints could be disabled.
_WITHOUT_QUEUEING_HINTS = "--emulated-version=1.33"


def gates_in_effect(api: Api) -> dict[str, bool]:
    """Return the feature gates of the API server, which has the same ones as kube-scheduler. Raises: ApiFailure."""
    return {name: state == "1" for name, state in _METRIC.findall(api.get("/metrics").decode())}


def scheduler_arguments(wanted: Mapping[str, bool], in_effect: Mapping[str, bool]) -> list[str]:
    """Return the arguments of kube-scheduler for the gates that differ from those in effect.

    Raises: Unsupported for a gate of the API server.
    """
    changed = {name: state for name, state in wanted.items() if in_effect.get(name) != state}
    for name, state in changed.items():
        if not name.startswith("Scheduler"):
            now = {True: "true", False: "false", None: "unknown"}[in_effect.get(name)]
            raise Unsupported(f"the feature gate {name} has to be {str(state).lower()}, and is {now} in the API server")
    if not changed:
        return []
    gates = ",".join(f"{name}={str(state).lower()}" for name, state in sorted(changed.items()))
    emulated = [_WITHOUT_QUEUEING_HINTS] if changed.get(_QUEUEING_HINTS) is False else []
    return [*emulated, f"--feature-gates={gates}"]
