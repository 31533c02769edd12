"""What keeps a bound pod from running on its node: a kubelet's refusal, or containers that cannot be started there.

Problem: its controller makes the next pod at once, and whoever places that one where this one failed loops for ever.
Rule: two cases are the node's: the kubelet did not admit the pod (it failed before any of its containers was made), or
a container's image or program is not for this machine. Everything else that keeps containers waiting (a secret that is
not there, a registry that refuses) would be the same on any node, and is told but not held against this one.
Each case puts in doubt the facts by which the pod came there.
Source: kubelet, `pkg/kubelet/lifecycle` (reasons of admission) and `pkg/kubelet/images` (reasons of waiting);
containerd's and CRI-O's own words for images without a manifest for the platform.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hetsched.adapters.objects.fields import View
from hetsched.contracts.observed import ContainerWait, NodeRefusal
from hetsched.contracts.units import GPU_RESOURCES

# Reasons of a pod that was not admitted, and what each puts in doubt.
_ADMISSION = {
    "TopologyAffinityError": ("numa",),
    "SMTAlignmentError": ("numa",),
    "UnexpectedAdmissionError": (),  # its message says which
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
_NOT_ADMITTED = "Pod was rejected"  # how the kubelet's message begins, whatever the reason
_CPUS = re.compile(r"\bcpus?\b", re.IGNORECASE)
_PLATFORM = re.compile(
    r"no matching manifest|no match for platform|does not match the specified platform"
    r"|exec format error|no image found in (?:manifest list|image index)",
    re.IGNORECASE,
)
_ON_THIS_NODE = frozenset({"CreateContainerError", "RunContainerError"})
# What every container goes through.
_USUAL = frozenset({"", "ContainerCreating", "PodInitializing"})
_LONGEST = 1000


def refusal(status: View) -> NodeRefusal | None:
    """Return why its node does not run a pod, None where it does or where the node has nothing to do with it."""
    reason, message = status.text("reason"), status.text("message")[:_LONGEST]
    if status.text("phase") == "Failed" and not any(_begun(container) for container in _containers(status)):
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


def waiting(status: View) -> ContainerWait | None:
    """Return the first container that waits for more than its turn."""
    for container in _containers(status):
        wait = container.view("state").view("waiting")
        if wait.text("reason") not in _USUAL:
            return ContainerWait(container.text("name"), wait.text("reason"), wait.text("message")[:_LONGEST])
    return None


def _containers(status: View) -> Iterator[View]:
    for group in ("initContainerStatuses", "containerStatuses"):
        yield from status.views(group)


def _begun(container: View) -> bool:
    states = container.view("state"), container.view("lastState")
    return any(kind in state for state in states for kind in ("running", "terminated"))


def _of_container(container: View) -> NodeRefusal | None:
    state, last = container.view("state"), container.view("lastState")
    wait = state.view("waiting")
    for told in (wait, state.view("terminated"), last.view("terminated")):
        message = told.text("message")[:_LONGEST]
        if _PLATFORM.search(message):
            return NodeRefusal(told.text("reason"), message, ("isa",))
    if wait.text("reason") in _ON_THIS_NODE:
        message = wait.text("message")[:_LONGEST]
        return NodeRefusal(wait.text("reason"), message, _named(message))
    return None


def _lacking(resource: str) -> tuple[str, ...]:
    return ("gpu",) if resource in GPU_RESOURCES else ("allocatable",)


def _named(message: str) -> tuple[str, ...]:
    """Return the facts that a message speaks of: devices by their resource, CPUs of their own by name."""
    if any(resource in message for resource in GPU_RESOURCES):
        return ("gpu",)
    return ("numa",) if _CPUS.search(message) else ()
