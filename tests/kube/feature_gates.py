"""Feature gates of objects and fields that the API server of the tests has, but does not serve by default.

Source: kubernetes pkg/features/kube_features.go (1.34 to 1.37).
"""

from __future__ import annotations

from typing import Any

from hetsched.adapters.kubernetes.api import Resource
from hetsched.adapters.kubernetes.resources import DEVICE_TAINT_RULES, NATIVE_GROUPS, NATIVE_WORKLOADS
from tests.kube.control_plane import API_SERVER

MINOR = int(API_SERVER.split(".")[1])
# Native gangs: groups are parts of Workloads in 1.35, and 1.34 has none. Since 1.37 gangs have no gate of their own.
IN_WORKLOADS = MINOR == 35
GROUPS: Resource = NATIVE_WORKLOADS if IN_WORKLOADS else NATIVE_GROUPS.in_all_versions()[{36: 2}.get(MINOR, 0)]
_GANGS = {
    34: (),
    35: ("GenericWorkload", "GangScheduling"),
    36: ("GenericWorkload", "GangScheduling", "TopologyAwareWorkloadScheduling"),
}
GANGS: tuple[str, ...] = _GANGS.get(MINOR, ("GenericWorkload", "TopologyAwareWorkloadScheduling"))
# Values of `disruptionMode` of a PodGroup: a union since 1.37.
DISRUPTION_MODES: dict[str, Any] = {"Single": {"single": {}}, "All": {"all": {}}}
if MINOR == 36:
    DISRUPTION_MODES = {"Single": "Pod", "All": "PodGroup"}
# Rules that taint devices, in the newest version that the API server has.
RULES: Resource = DEVICE_TAINT_RULES.in_all_versions()[{34: 2, 35: 2, 36: 1}.get(MINOR, 0)]
_TAINT_RULES = {34: ("DRADeviceTaints",), 35: ("DRADeviceTaints", "DRADeviceTaintRules"), 36: ("DRADeviceTaintRules",)}
TAINT_RULES: tuple[str, ...] = _TAINT_RULES.get(MINOR, ())
# Taints and tolerations, shares, counters, node selectors and binding conditions of devices are beta since 1.36.
DEVICE_FIELDS = (
    "DRADeviceTaints", "DRAConsumableCapacity", "DRAPartitionableDevices", "DRADeviceBindingConditions",
)  # fmt: skip


def enabled(*gates: str) -> str:
    """Return the argument of the API server that enables gates."""
    return f"--feature-gates={','.join(f'{gate}=true' for gate in gates)}"


def serving(*versions: str) -> str:
    """Return the argument of the API server that serves API versions, such as `resource.k8s.io/v1beta2`."""
    return f"--runtime-config={','.join(f'{version}=true' for version in versions)}"
