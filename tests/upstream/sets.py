"""Sets of Kubernetes' own tests: which program runs them, which tests are selected, and which cluster they need."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Set:
    """Tests that run on one cluster. `runs` are (program, selected tests, skipped tests) as regular expressions.

    `gate` is a feature gate that the cluster needs in addition to its defaults, and `serves` the API version of it.
    """

    title: str
    runs: tuple[tuple[str, str, str], ...] = ()
    gate: str = ""
    serves: str = ""

    @property
    def is_end_to_end(self) -> bool:
        """Return whether the tests are e2e tests, which need controllers, nodes and kubelets."""
        return any(program == "e2e.test" for program, _, _ in self.runs)


_APPS = "|".join(
    (
        "NoExecuteTaintManager", "RuntimeClass should run a Pod requesting a RuntimeClass with scheduling",
        "DisruptionController", "Daemon set", "Deployment (deployment|Deployment|Recreate|Rolling)",
        "Deployment should run the lifecycle", "Should recreate evicted statefulset", r"sig-apps\] ReplicaSet",
        "Job should (run a job to completion|delete|execute all|adopt)",
    )
)  # fmt: skip
# Tests that need real containers, a cloud or several clusters.
_NOT_FAKE = "private image|serve a basic image|load-balancer|OffByDefault|gcp|locally restarted"
# These tests call the kube-scheduler of their process, or need feature gates of the API server that are off by default.
_IN_PROCESS = "|".join(
    (
        "TestAsyncPreemption", "TestPreemptionRespects", "TestInterPodAffinityPreemption", "TestDeferredResize",
        "TestPreemption/(pod_group|multiple_victim|unsuccessful|CPG)",
    )
)  # fmt: skip

SETS = {
    "probes": Set("in-place resize and labels of running pods"),
    "filters": Set("integration tests of filters", (("filters", "", ""),)),
    "preemption": Set(
        "integration tests of preemption",
        (("preemption", "", _IN_PROCESS), ("preemption/misc", "TestNonPreemption|TestPDBInPreemption", "")),
    ),
    "sched": Set("e2e tests of sig-scheduling", (("e2e.test", r"\[sig-scheduling\]", "OffByDefault"),)),
    "dra": Set("e2e tests of device claims, control plane", (("e2e.test", r"DRA\] control plane", "OffByDefault"),)),
    "gangs": Set(
        "e2e tests of pod groups",
        (("e2e.test", "GangScheduling|WorkloadAwarePreemption", ""),),
        gate="GenericWorkload",
        serves="scheduling.k8s.io/v1beta1",
    ),
    "apps": Set("e2e tests of controllers that depend on scheduling", (("e2e.test", _APPS, _NOT_FAKE),)),
}  # fmt: skip

# Tests that may fail with hetsched alone: a regular expression of their names, and the reason in the docs.
DIFFERENCES = {
    "TestNodeDeclaredFeaturesFilter/pod_with_feature_requirement": (
        "The test defines a feature in the process of kube-scheduler, which no other process can read."
    ),
    r"^TestPreemption/basic_pod_preemption_with_(filter|preFilter)_": (
        "The tests register a filter in the process of kube-scheduler that admits one pod. Without it, both pods fit "
        "on the node."
    ),
}
