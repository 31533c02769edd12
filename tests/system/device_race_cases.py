"""Clusters with devices and replicated pods of several claims, for races for devices.

Many claims of one pod share the costs of its decision and its rows. Replicas have equal requests, so that the engine
reuses the results of searches for devices, as for the pods of one workload.
"""

from __future__ import annotations

from collections.abc import Container
from copy import deepcopy
from functools import lru_cache

import msgspec

from tests.differential.clusters import Case, Object
from tests.differential.device_clusters import draw_raced_devices
from tests.differential.device_comparison import place

DRAWN = 48  # pods, of which many fit on no node
TEMPLATES = 6  # the fitting pods with the most claims
REPLICAS = 8
MOST_PODS = TEMPLATES * REPLICAS


@lru_cache(maxsize=4)  # the same process adds and checks a cluster
def race_case(seed: int) -> Case:
    """Return the cluster of a seed, with replicas of pods that each fit alone."""
    drawn = draw_raced_devices(seed, DRAWN)
    fitting = [pod for pod, found in zip(drawn.pods, place(drawn), strict=True) if found.feasible]
    templates = sorted(fitting, key=lambda pod: -len(_claims_of(pod)))[:TEMPLATES]
    used = {use["resourceClaimName"] for pod in templates for use in _claims_of(pod)}
    unallocated = [each for each in drawn.objects if each["kind"] == "ResourceClaim" and "status" not in each]
    replicated = [each for each in unallocated if each["metadata"]["name"] in used]
    names = {each["metadata"]["name"] for each in replicated}
    objects, pods = [each for each in drawn.objects if each not in unallocated], list[Object]()
    for number in range(REPLICAS):
        objects += [_replica(claim, number, names) for claim in replicated]
        pods += [_replica(template, number, names) for template in templates]
    return msgspec.structs.replace(drawn, objects=objects, pods=pods)


def _claims_of(pod: Object) -> list[Object]:
    uses: list[Object] = pod["spec"]["resourceClaims"]
    return uses


def _replica(one: Object, number: int, claims: Container[str]) -> Object:
    """Return a replica of a pod or claim; a pod uses the replicas of these claims."""
    copy, suffix = deepcopy(one), f"-r{number}"
    for field in ("name", "uid"):
        copy["metadata"][field] += suffix
    for use in copy["spec"].get("resourceClaims", ()):
        if use["resourceClaimName"] in claims:
            use["resourceClaimName"] += suffix
    return copy
