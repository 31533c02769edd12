"""Place pods only on nodes that declare the features of the kubelet which the pod uses.

Rule: `node.status.declaredFeatures` contains each feature that the pod requires. A container with a restart rule of the
action RestartAllContainers requires RestartAllContainersOnContainerExits. A pod with `hostNetwork: true` and
`hostUsers: false` requires UserNamespacesHostNetworkSupport. A volume mount with bind mount options requires
VolumeBindMountOptions.
Source: kube-scheduler's NodeDeclaredFeatures plugin (beta in Kubernetes 1.36, stable in 1.37).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial

import msgspec
import numpy as np

from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.node_features import REQUIRED_BY
from hetsched.contracts.objects.workload import Shape
from hetsched.contracts.waits import Event
from hetsched.engine.cluster.columns import Bools, Rows, Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.relaxations import RULE_SIZE, Step
from hetsched.engine.explain.rule_relaxations import FieldOptions
from hetsched.engine.framework.extension_points import Reads
from hetsched.engine.framework.registry import plugin
from hetsched.engine.framework.request import Request, StateKey
from hetsched.engine.framework.status import SKIP, Refusal, Skip

_DECLARED: StateKey[list[tuple[str, Bools]]] = StateKey("declared-features")


@plugin(
    "declared-features",
    summary="Exclude nodes that do not declare a kubelet feature which the pod uses.",
    reads=Reads.STATIC,
    helped_by=frozenset({Event.NODE_ADDED, Event.NODE_FEATURES}),
)
class DeclaredFeatures:
    def handles(self, shape: Shape) -> bool:
        return bool(shape.node_features)

    def static_key(self, request: Request) -> Hashable:
        return request.shape.node_features

    def pre_filter(self, request: Request, state: ClusterState) -> None | Skip:
        if not request.shape.node_features:
            return SKIP
        request.memo[_DECLARED] = [(name, _declaring(name, state)) for name in request.shape.node_features]
        return None

    def filter(self, request: Request, nodes: Window) -> Bools:
        fits: Bools = np.ones(nodes.n, np.bool_)
        for _, declaring in request.memo[_DECLARED]:
            fits &= nodes.pick(declaring)
        return fits

    def refusals(self, request: Request, nodes: Window) -> Iterator[tuple[Refusal, Bools]]:
        for name, declaring in request.memo[_DECLARED]:
            text = Message("the node does not declare the feature {name}", name=name)
            yield Refusal("NodeFeatureMissing", text, missing=(name,)), ~nodes.pick(declaring)

    def waits(self, request: Request) -> Message:
        return Message("a node that declares {names}", names=joined(", ", request.shape.node_features))

    def relaxations(self, shape: Shape, state: ClusterState) -> Iterator[FieldOptions]:
        if shape.node_features:
            yield FieldOptions(partial(_without, names=shape.node_features), _options)


def _declaring(name: str, state: ClusterState) -> Bools:
    """Return the (N,) mask of nodes that declare a feature."""

    def mask() -> Bools:
        return np.array([name in report.declared_features for report in state.reports], np.bool_)

    return state.once((_DECLARED, name), mask)


def _without(shape: Shape, *, names: tuple[str, ...]) -> Shape:
    kept = tuple(name for name in shape.node_features if name not in names)
    return msgspec.structs.replace(shape, node_features=kept)


def _options(shape: Shape, rows: Rows) -> Iterator[Step]:
    """Yield one step for each required feature, which drops only this one, then a step that drops all."""
    choices = [(name,) for name in shape.node_features]
    for names in [*choices, shape.node_features] if len(choices) > 1 else choices:
        field, text = ", ".join(REQUIRED_BY[name] for name in names), ", ".join(names)
        words = Message("remove {field}, which requires {text}", field=field, text=text)
        yield Step(field, text, "", words, RULE_SIZE * len(names), partial(_without, names=names))
