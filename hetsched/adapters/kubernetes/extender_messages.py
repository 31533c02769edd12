"""JSON messages between kube-scheduler and the scheduler extender.

kube-scheduler sends these messages for every pod and treats a reply that it cannot decode as an error. Members are
named like the fields of the Go types. Nodes are sent as names if the scheduler's configuration sets `nodeCacheCapable`,
otherwise as whole objects. Replies contain nodes in the same form as the request; whole objects are returned byte for
byte. A malformed message is rejected before any decision.
Source: k8s.io/kube-scheduler/extender/v1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from hetsched.adapters.objects.fields import FieldView
from hetsched.adapters.objects.pods import PodReader
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.workload import PodSpec

from .typed_objects import decode_pod

T = TypeVar("T")


class _NameMeta(msgspec.Struct):
    name: str


class _CandidateNode(msgspec.Struct):
    metadata: _NameMeta


class _Nodes(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class Args(msgspec.Struct):
    """A pod and its candidate nodes: `ExtenderArgs`."""

    pod: msgspec.Raw = msgspec.field(name="Pod")
    nodes: _Nodes | None = msgspec.field(default=None, name="Nodes")
    node_names: list[str] | None = msgspec.field(default=None, name="NodeNames")

    def named(self) -> dict[str, msgspec.Raw | None]:
        """Return the nodes by name; values are the node objects, or None if the request contains only names.

        Raises: InputError `ExtenderArgsInvalid`.
        """
        if self.node_names is not None:
            return dict.fromkeys(self.node_names)
        if self.nodes is None:
            raise _invalid("the request contains neither Nodes nor NodeNames")
        return {_read(bytes(item), _node).metadata.name: item for item in self.nodes.items or ()}


class FilterResult(msgspec.Struct, rename="pascal", omit_defaults=True):
    """Response to `filter`: `ExtenderFilterResult`."""

    node_names: list[str] | None = None
    nodes: dict[str, Sequence[msgspec.Raw | None]] | None = None
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class HostPriority(msgspec.Struct, rename="pascal"):
    host: str
    score: int


class _Uid(msgspec.Struct):
    uid: str = ""


class _VictimPod(msgspec.Struct):
    metadata: _Uid


class _Victims(msgspec.Struct, rename="pascal"):
    pods: list[_VictimPod] | None = None
    num_pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")


class MetaPod(msgspec.Struct):
    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, rename="pascal"):
    """Victims on a node, by uid, and the number of PodDisruptionBudget violations that kube-scheduler counted."""

    pods: list[MetaPod] | None = None
    num_pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")


class PreemptionArgs(msgspec.Struct):
    """A pod that fits no node, and the scheduler's victims per node: `ExtenderPreemptionArgs`."""

    pod: msgspec.Raw = msgspec.field(name="Pod")
    whole: dict[str, _Victims] | None = msgspec.field(default=None, name="NodeNameToVictims")
    meta: dict[str, MetaVictims] | None = msgspec.field(default=None, name="NodeNameToMetaVictims")

    def offered(self) -> dict[str, MetaVictims]:
        """Return the victims by node in the short form (uids), regardless of the form of the request."""
        if self.meta is not None:
            return self.meta
        return {
            name: MetaVictims([MetaPod(pod.metadata.uid) for pod in victims.pods or ()], victims.num_pdb_violations)
            for name, victims in (self.whole or {}).items()
        }


class PreemptionResult(msgspec.Struct):
    victims: dict[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims")


class BindingArgs(msgspec.Struct, rename="pascal"):
    """A pod and the node to bind it to: `ExtenderBindingArgs`."""

    pod_name: str
    pod_namespace: str
    node: str
    pod_uid: str = msgspec.field(name="PodUID")


class ExtenderBindingResult(msgspec.Struct, rename="pascal"):
    error: str = ""


_node = msgspec.json.Decoder(_CandidateNode)
_args = msgspec.json.Decoder(Args)
_preemption = msgspec.json.Decoder(PreemptionArgs)
_binding = msgspec.json.Decoder(BindingArgs)


def _invalid(message: str) -> InputError:
    return InputError("ExtenderArgsInvalid", message, hint="See k8s.io/kube-scheduler/extender/v1")


def _read(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _invalid(str(error)[:300]) from None


def read_args(body: bytes) -> Args:
    """Decode the body of `filter` and `prioritize`. Raises: InputError `ExtenderArgsInvalid`."""
    return _read(body, _args)


def read_preemption(body: bytes) -> PreemptionArgs:
    """Decode the body of `preempt`. Raises: InputError `ExtenderArgsInvalid`."""
    return _read(body, _preemption)


def read_binding(body: bytes) -> BindingArgs:
    """Decode the body of `bind`. Raises: InputError `ExtenderArgsInvalid`."""
    return _read(body, _binding)


def read_pod(body: bytes, reader: PodReader) -> PodSpec:
    """Read a pending pod with the same reader as the informer.

    Raises: InputError `ExtenderArgsInvalid`, `PodNotWaiting`, or the reader's error for an invalid pod.
    """
    try:
        spec = reader.pod(FieldView(decode_pod(body)))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise _invalid(f"Pod: {str(error)[:300]}") from None
    if spec is None:
        raise InputError("PodNotWaiting", "the pod has finished or was deleted before it was scheduled")
    return spec
