"""Operations of scheduler_perf that hetsched runs, with resolved parameters.

The fields are those of the configuration files; unknown fields and values are errors. Paths are relative to the
configuration file. An absent namespace is `namespace-<number of the operation>`, as in scheduler_perf.
Source: test/integration/scheduler_perf/operations.go and dra.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from hetsched.adapters.kubernetes.api import Resource
from hetsched.adapters.kubernetes.resources import DEVICE_CLASSES, NAMESPACES, NODES, PODS, RESOURCE_CLAIMS

_SERVICES = Resource("", "v1", "services", "Service")
# Kinds of templates, and whether their objects have a namespace. A ResourceClaimTemplate would need a controller.
KINDS = {
    resource.kind: (resource, namespaced)
    for resource, namespaced in (
        (NODES, False), (NAMESPACES, False), (DEVICE_CLASSES, False),
        (PODS, True), (_SERVICES, True), (RESOURCE_CLAIMS, True),
    )
}  # fmt: skip
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}


class _Operation(msgspec.Struct, frozen=True, rename="camel", tag_field="opcode", forbid_unknown_fields=True):
    def paths(self) -> tuple[str, ...]:
        """Return the paths of the templates of this operation."""
        return ()


class NodeLabels(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Label of the created nodes: the values in turns, or a unique one for each node without values."""

    label_key: str
    label_values: tuple[str, ...] = ()


class CreateNodes(_Operation, frozen=True, tag="createNodes"):
    count: int
    node_template_path: str = ""
    label_node_prepare_strategy: NodeLabels | None = None
    unique_node_label_strategy: NodeLabels | None = None

    def paths(self) -> tuple[str, ...]:
        return (self.node_template_path,) if self.node_template_path else ()


class CreateNamespaces(_Operation, frozen=True, tag="createNamespaces"):
    prefix: str
    count: int
    namespace_template_path: str = ""

    def paths(self) -> tuple[str, ...]:
        return (self.namespace_template_path,) if self.namespace_template_path else ()


class CreatePods(_Operation, frozen=True, tag="createPods"):
    count: int
    namespace: str = ""
    pod_template_path: str = ""
    collect_metrics: bool = False
    skip_wait_to_completion: bool = False

    def paths(self) -> tuple[str, ...]:
        return (self.pod_template_path,) if self.pod_template_path else ()


class DeletePods(_Operation, frozen=True, tag="deletePods"):
    namespace: str
    delete_pods_per_second: int = 0
    skip_wait_to_completion: bool = False


class Churn(_Operation, frozen=True, tag="churn"):
    mode: Literal["create", "recreate"]
    template_paths: tuple[str, ...]
    number: int = 0
    namespace: str = ""
    interval_milliseconds: int = 500

    def paths(self) -> tuple[str, ...]:
        return self.template_paths


class Barrier(_Operation, frozen=True, tag="barrier"):
    namespaces: tuple[str, ...] = ()
    stage_requirement: Literal["Scheduled", "Attempted"] = "Scheduled"


class Sleep(_Operation, frozen=True, tag="sleep"):
    duration: str

    @property
    def seconds(self) -> float:
        """Return the duration, for example `1m30s`, in seconds."""
        return sum(float(value) * _SECONDS[unit] for value, unit in re.findall(r"([\d.]+)(ms|s|m)", self.duration))


class CreateAny(_Operation, frozen=True, tag="createAny"):
    template_path: str
    namespace: str = ""
    count: int = 1

    def paths(self) -> tuple[str, ...]:
        return (self.template_path,)


class CreateResourceDriver(_Operation, frozen=True, tag="createResourceDriver"):
    """ResourceSlices of a driver, with `max_claims_per_node` devices, for the nodes that match the pattern `nodes`."""

    driver_name: str
    nodes: str
    max_claims_per_node: int


Operation = (
    CreateNodes | CreateNamespaces | CreatePods | DeletePods | Churn | Barrier | Sleep | CreateAny
    | CreateResourceDriver
)  # fmt: skip
_OPCODES = {str(one.__struct_config__.tag) for one in get_args(Operation)}


def operation_of(fields: Mapping[str, Any]) -> Operation:
    """Return the operation with these fields. Raises: ValueError for one that is not supported, with the reason."""
    opcode = fields.get("opcode", "")
    if opcode not in _OPCODES:
        raise ValueError(f"the operation {opcode} is not supported")
    try:
        return msgspec.convert(dict(fields), type=Operation)
    except msgspec.ValidationError as error:
        unknown = re.search(r"unknown field `(\w+)`", str(error))
        if unknown:
            raise ValueError(f"the field {unknown[1]} of {opcode} is not supported") from None
        raise ValueError(f"{opcode}: {error}") from None
