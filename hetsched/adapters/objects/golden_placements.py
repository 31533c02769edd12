"""Reader of GoldenPlacement objects, which are stored in files with the policies that they check.

`spec.pod` is a manifest of one pod; for a Job or Deployment, one of its pods is checked. `spec.expect` contains one
expectation. `spec.policy` names the policy to check; if it is empty, all policies are checked. Other objects of the
files are ignored.

    apiVersion: hetsched.io/v1alpha1
    kind: GoldenPlacement
    metadata: {name: inference-on-a100}
    spec: {policy: hetsched, expect: {selector: {gpu: a100}}, pod: {apiVersion: v1, kind: Pod, …}}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hetsched.adapters.files import Source, parse_workload
from hetsched.contracts.api.golden import Expectation
from hetsched.contracts.documents import encode, to_plain
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.isa.isa_strings import required_isa
from hetsched.engine.simulation.golden_placements import Golden

from .documents import Document, load_documents

KIND = "GoldenPlacement"
API_VERSION = "hetsched.io/v1alpha1"


class GoldenDefinition(msgspec.Struct, frozen=True):
    """A golden placement in a file, and the policy that it checks ("" for all policies)."""

    golden: Golden
    policy: str


class _GoldenSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pod: dict[str, Any]
    expect: Expectation
    policy: str = ""


class _GoldenMeta(msgspec.Struct, frozen=True):
    name: str


class _GoldenObject(msgspec.Struct, frozen=True):
    metadata: _GoldenMeta
    spec: _GoldenSpec


def parse_goldens(sources: Sequence[Source], *, cluster: str, known: ClusterContent) -> list[GoldenDefinition]:
    """Read golden placements for a cluster; their pods may refer to classes and groups of `known`.

    Raises: InputError `GoldensMissing`, `GoldenMalformed`, or the error of an invalid pod or expectation.
    """
    documents = [document for name, data in sources for document in load_documents(data, name=name)]
    found = [_read(document, cluster, known) for document in documents if _is_golden(document)]
    if not found:
        raise InputError(
            "GoldensMissing",
            Message("the input contains no {kind} objects", kind=KIND),
            place=", ".join(name for name, _ in sources),
        )
    names = [definition.golden.name for definition in found]
    for name in names:
        if names.count(name) > 1:
            raise InputError("ObjectDuplicate", Message("two {kind} objects are named {name}", kind=KIND, name=name))
    return found


def one_pod(data: bytes, known: ClusterContent | None) -> PodSpec:
    """Read a manifest of one pod; for a Job or Deployment, return one of its pods.

    Raises: InputError `GoldenPodInvalid`, or the error of an invalid manifest.
    """
    pods = parse_workload([("manifest", data)], known=known).pending
    if not pods or len({pod.shape for pod in pods}) > 1:
        text = "the manifest must contain one pod, but contains none"
        if pods:
            text = "the manifest must contain one pod, but contains pods with different requests"
        raise InputError("GoldenPodInvalid", text, place="manifest")
    return pods[0]


def golden_object(name: str, policy: str, expect: Expectation, pod: Any) -> dict[str, Any]:
    """Return a GoldenPlacement object; `pod` is the manifest of its pod."""
    guarded = {"policy": policy} if policy else {}
    spec = {**guarded, "expect": to_plain(expect), "pod": pod}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}


def _is_golden(document: Document) -> bool:
    return document.object.get("kind") == KIND and document.object.get("apiVersion") == API_VERSION


def _read(document: Document, cluster: str, known: ClusterContent) -> GoldenDefinition:
    try:
        found = msgspec.convert(document.object, _GoldenObject)
        found.spec.expect.checked()
        if found.spec.expect.isa:
            required_isa(found.spec.expect.isa)
        pod = one_pod(encode(found.spec.pod), known)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        raise document.locate(InputError("GoldenMalformed", message, place=place.rstrip("`"))) from None
    except InputError as error:
        raise document.locate(error) from None
    return GoldenDefinition(Golden(found.metadata.name, cluster, pod, found.spec.expect), found.spec.policy)
