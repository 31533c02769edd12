"""Failures of a bound pod on its node: rejection by the kubelet, or containers that cannot start on it.

The controller replaces a failed pod immediately, so a scheduler that chooses the same node again would loop. Two cases
are attributed to the node: the kubelet did not admit the pod (it failed before any container was created), or a
container's image or program is not built for this machine. Every other waiting reason (a missing secret, a registry
error) would be the same on any node, so it is reported but not attributed to the node. In both cases, the node facts
that the placement relied on are marked as suspect.
Source: kubelet, `pkg/kubelet/lifecycle` (admission reasons) and `pkg/kubelet/images` (waiting reasons); messages of
containerd and CRI-O for images without a manifest for the platform.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hetsched.adapters.objects.fields import FieldView
from hetsched.contracts.objects.observed import ContainerWait, NodeRefusal
from hetsched.contracts.units import GPU_RESOURCES

# Reasons why a kubelet rejects a pod, with the facts that each reason makes suspect.
_ADMISSION = {
    "TopologyAffinityError": ("numa",),
    "SMTAlignmentError": ("numa",),
    "UnexpectedAdmissionError": (),  # the message names the resource
    "NodeAffinity": ("labels",),
    "NodeName": (),
    "NodePorts": (),
    "TaintToleration": ("taints",),
    "PodOSSelectorNodeLabelDoesNotMatch": ("labels",),
    "PodOSNotSupported": ("labels",),
    "AppArmor": (),
    "SysctlForbidden": (),
    "InvalidNodeInfo": (),
    "PodFeatureUnsupported": (),
    "NodeDeclaredFeaturesNotMet": (),
}
_OUT_OF = re.compile(r"OutOf(.+)")
_NOT_ADMITTED = "Pod was rejected"  # start of the kubelet's message for every reason
_CPUS = re.compile(r"\bcpus?\b", re.IGNORECASE)
_PLATFORM = re.compile(
    r"no matching manifest|no match for platform|does not match the specified platform"
    r"|exec format error|no image found in (?:manifest list|image index)",
    re.IGNORECASE,
)
_ON_THIS_NODE = frozenset({"CreateContainerError", "RunContainerError"})
# Waiting reasons that occur while a container starts normally.
_USUAL = frozenset({"", "ContainerCreating", "PodInitializing"})
_LONGEST = 1000


def has_stopped(status: FieldView) -> bool:
    """Return whether any container of a pod is waiting or terminated, in its `state` or its `lastState`."""
    states = (container.view(key) for container in _containers(status) for key in ("state", "lastState"))
    return any("waiting" in state or "terminated" in state for state in states)


def refusal(status: FieldView) -> NodeRefusal | None:
    """Return why the node does not run a pod, or None if the pod runs or the cause is not the node."""
    reason, message = status.text("reason"), status.text("message")[:_LONGEST]
    if status.text("phase") == "Failed" and not any(_has_started(container) for container in _containers(status)):
        out_of = _OUT_OF.fullmatch(reason)
        if out_of is not None:
            return NodeRefusal(reason, message, _lacking(out_of[1]))
        if reason in _ADMISSION:
            return NodeRefusal(reason, message, _ADMISSION[reason] or _named(message))
        if message.startswith(_NOT_ADMITTED):
            return NodeRefusal(reason or "Rejected", message)
    for container in _containers(status):
        found = _of_container(container)
        if found is not None:
            return found
    return None


def waiting(status: FieldView) -> ContainerWait | None:
    """Return the first waiting container whose waiting reason does not occur in a normal start."""
    for container in _containers(status):
        wait = container.view("state").view("waiting")
        if wait.text("reason") not in _USUAL:
            return ContainerWait(container.text("name"), wait.text("reason"), wait.text("message")[:_LONGEST])
    return None


def _containers(status: FieldView) -> Iterator[FieldView]:
    for group in ("initContainerStatuses", "containerStatuses"):
        yield from status.views(group)


def _has_started(container: FieldView) -> bool:
    states = container.view("state"), container.view("lastState")
    return any(kind in state for state in states for kind in ("running", "terminated"))


def _of_container(container: FieldView) -> NodeRefusal | None:
    state, last = container.view("state"), container.view("lastState")
    wait = state.view("waiting")
    for container_state in (wait, state.view("terminated"), last.view("terminated")):
        message = container_state.text("message")[:_LONGEST]
        if _PLATFORM.search(message):
            return NodeRefusal(container_state.text("reason"), message, ("isa",))
    if wait.text("reason") in _ON_THIS_NODE:
        message = wait.text("message")[:_LONGEST]
        return NodeRefusal(wait.text("reason"), message, _named(message))
    return None


def _lacking(resource: str) -> tuple[str, ...]:
    return ("gpu",) if resource in GPU_RESOURCES else ("allocatable",)


def _named(message: str) -> tuple[str, ...]:
    """Return the facts that a message refers to: GPUs by their resource name, CPUs by the word "CPU"."""
    if any(resource in message for resource in GPU_RESOURCES):
        return ("gpu",)
    return ("numa",) if _CPUS.search(message) else ()
