"""Expansion of controllers in a workload file to the pods that they would create.

A Deployment, ReplicaSet or StatefulSet is expanded to `replicas` pods, a Job to min(parallelism, completions) pods, or
to none while the Job is suspended. Pods are named `<controller>-<ordinal>`, or `<controller>-<kind>-<ordinal>` if that
name is taken. The template is read once, so the pods share one shape unless each pod has its own claims.
Source: Kubernetes apps/v1 and batch/v1.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hetsched.contracts.message import Message
from hetsched.contracts.objects.workload import PodSpec

from . import storage
from .fields import FieldView, metadata
from .pods import PodReader, namespace_of

MAX_PODS = 200_000
KINDS = {"Deployment": "apps/", "ReplicaSet": "apps/", "StatefulSet": "apps/", "Job": "batch/"}


def expand(root: FieldView, kind: str, reader: PodReader, taken: set[str]) -> Iterator[PodSpec]:
    """Yield the pods of one controller; `taken` contains the keys of other pods.

    Raises: InputError; `TooManyPods` if the file creates more than `MAX_PODS` pods.
    """
    meta, spec = metadata(root), root.view("spec")
    name, namespace = meta.text("name"), namespace_of(meta)
    template = spec.view("template")
    count, first = _count(spec, kind), spec.view("ordinals").integer("start") if kind == "StatefulSet" else 0
    if len(taken) + count > MAX_PODS:
        message = Message("a file may create at most {n} pods", n=MAX_PODS)
        spec.fail(message, code="TooManyPods", hint="Reduce the number of replicas, or split the file")
    pod = reader.template(template, name, namespace)
    claim_templates = storage.templates_of(spec) if kind == "StatefulSet" else {}
    for ordinal in range(first, first + count):
        own = f"{name}-{ordinal}"
        if f"{namespace}/{own}" in taken:
            own = f"{name}-{kind.lower()}-{ordinal}"
        shape = pod.shape
        if claim_templates or shape.claims:
            claims = storage.with_templates(storage.claims_of(template.view("spec"), own), claim_templates, own)
            shape = msgspec.structs.replace(shape, claims=claims)
        yield msgspec.structs.replace(pod, name=own, shape=shape, controller=f"{kind}/{name}")


def _count(spec: FieldView, kind: str) -> int:
    if kind != "Job":
        return spec.integer("replicas", 1, most=2**31 - 1)
    if spec.flag("suspend"):
        return 0
    parallel = spec.integer("parallelism", 1, most=2**31 - 1)
    completions = spec.maybe_integer("completions", most=2**31 - 1)
    return parallel if completions is None else min(parallel, completions)
