"""Compare device allocations of kube-scheduler's code and of hetsched on random clusters.

Both sides judge on which nodes the claims of a pod can be allocated. hetsched then places the pods of the case one
after the other, and each allocation is checked without hetsched's code (`device_allocations`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import msgspec

from hetsched.adapters.files import parse_cluster, parse_workload
from hetsched.contracts.objects.allocation import DeviceGrant, ExtendedClaim
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.extender_verbs import filter_nodes

from . import verdicts
from .clusters import Case, Object
from .comparison import DEVICES_ABORTED, Difference
from .device_allocations import DeviceAllocations, Result
from .verdicts import FEASIBLE, KubeScheduler, PodVerdict

_ERROR = "error"


class Placement(msgspec.Struct):
    """hetsched's answer for one pod: the feasible nodes, then the node and the devices of its placement."""

    feasible: frozenset[str]
    reasons: dict[str, str]
    node: str | None = None
    grants: tuple[DeviceGrant, ...] = ()
    extended: ExtendedClaim | None = None


def place(case: Case) -> list[Placement]:
    """Judge each pod alone, then place all pods one after the other."""
    content = parse_cluster([("cluster.json", verdicts.as_list(case.objects))])
    pods = parse_workload([("pods.json", verdicts.as_list(case.pods))], known=content).pending
    scheduler = Scheduler(ClusterState.of(content), verdicts.POLICY)
    found = [_judge(scheduler, pod, [node.name for node in content.nodes]) for pod in pods]
    for pod, placement in zip(pods, found, strict=True):
        outcome = scheduler.schedule(pod)
        placement.node, placement.grants = outcome.node, outcome.allocation.devices
        placement.extended = outcome.allocation.extended or None
    return found


def _judge(scheduler: Scheduler, pod: PodSpec, names: Sequence[str]) -> Placement:
    found = filter_nodes(scheduler, pod, names)
    return Placement(frozenset(found.feasible), {**found.rejected, **found.unresolvable})


def device_differences(case: Case, scheduler: KubeScheduler) -> Iterator[Difference]:
    """Yield the differences in the feasible nodes, and the invalid allocations of hetsched."""
    claims = {each["metadata"]["name"]: each for each in case.objects if each["kind"] == "ResourceClaim"}
    found = place(case)
    for pod, theirs, ours in zip(case.pods, scheduler.judge(case), found, strict=True):
        used = [claims.get(use["resourceClaimName"]) for use in pod["spec"]["resourceClaims"]]
        yield from _of_nodes(pod, theirs, ours, [claim for claim in used if claim])
    yield from _of_allocations(case, claims, found)


def _of_nodes(pod: Object, theirs: PodVerdict, ours: Placement, claims: Sequence[Object]) -> Iterator[Difference]:
    """Yield the nodes on which the verdicts differ.

    After an error on one node, kube-scheduler places the pod on no node. An error of one alternative prevents the
    others on the same node.
    """
    aborted = _ERROR in theirs.nodes.values()
    alternatives = any(
        "firstAvailable" in request for claim in claims for request in claim["spec"]["devices"]["requests"]
    )
    for node, state in theirs.nodes.items():
        if (state == FEASIBLE) == (node in ours.feasible):
            continue
        text = f"{node}: {state} ({theirs.reasons.get(node)}) and {ours.reasons.get(node, FEASIBLE)}"
        yield Difference(pod, text, DEVICES_ABORTED if aborted and (state != _ERROR or alternatives) else "", "node")


def _of_allocations(case: Case, claims: Mapping[str, Object], placements: Sequence[Placement]) -> Iterator[Difference]:
    """Yield the placements with an allocation that is invalid together with all earlier ones."""
    allocations = DeviceAllocations(case.objects)
    for claim in claims.values():
        if "status" in claim:
            allocations.add(map(recorded, claim["status"]["allocation"]["devices"]["results"]))
    for pod, placement in zip(case.pods, placements, strict=True):
        if placement.node is None:
            continue
        names = {use["resourceClaimName"] for use in pod["spec"]["resourceClaims"]}
        if placement.extended is not None:
            yield from _of_extended(case, pod, placement, placement.extended)
            claims = {**claims, placement.extended.name: _claim_object(placement.extended)}
            names.add(placement.extended.name)
        for name in names:
            results = [result_of(grant) for grant in placement.grants if grant.claim == name]
            if "status" in claims[name]:
                problem = "an allocated claim gets devices" if results else ""
            else:
                problem = allocations.problem(claims[name], placement.node, results)
            if problem:
                yield Difference(pod, f"claim {name} on {placement.node}: {problem}: {results}", kind="devices")
            allocations.add(results)


def _claim_object(claim: ExtendedClaim) -> Object:
    requests = [
        {
            "name": request.name,
            "exactly": {
                "deviceClassName": request.device_class, "allocationMode": "ExactCount", "count": request.count,
            },
        }
        for request in claim.requests
    ]  # fmt: skip
    return {"spec": {"devices": {"requests": requests}}}


def _of_extended(case: Case, pod: Object, placement: Placement, claim: ExtendedClaim) -> Iterator[Difference]:
    """Yield the containers whose requests of the claim have too few devices, or that share devices at one time."""
    (node,) = [each for each in case.objects if each["kind"] == "Node" and each["metadata"]["name"] == placement.node]
    counts = {request.name: request.count for request in claim.requests}
    served = {mapping.resource for mapping in claim.mappings}
    used: dict[str, str] = {}
    init = pod["spec"].get("initContainers", [])
    for container in [*init, *pod["spec"]["containers"]]:
        for resource, text in container.get("resources", {}).get("limits", {}).items():
            if resource not in served or text == "0":
                continue
            requests = [
                each.request
                for each in claim.mappings
                if (each.container, each.resource) == (container["name"], resource)
            ]
            if sum(counts[request] for request in requests) < int(text):
                yield Difference(pod, f"{container['name']} has too few devices of {resource}: {claim}", kind="devices")
            if node["status"]["allocatable"].get(resource, "0") != "0":
                yield Difference(pod, f"a device plugin of {placement.node} offers {resource}", kind="devices")
            if container in init and container.get("restartPolicy") != "Always":
                continue
            for request in requests:
                if used.setdefault(request, container["name"]) != container["name"]:
                    yield Difference(pod, f"two running containers share {request}: {claim}", kind="devices")


def recorded(result: Object) -> Result:
    device = result["driver"], result["pool"], result["device"]
    shares = {name: Fraction(amount) for name, amount in result.get("consumedCapacity", {}).items()}
    return Result(result["request"], device, result.get("adminAccess", False), shares if "shareID" in result else None)


def result_of(grant: DeviceGrant) -> Result:
    consumed = grant.consumed
    amounts = None if consumed is None else {name: Fraction(amount, 1000) for name, amount in consumed.items()}
    device = grant.device.driver, grant.device.pool, grant.device.name
    return Result(grant.request, device, grant.admin, amounts)
