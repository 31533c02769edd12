"""The realms of names in a cluster, and the valid pseudonyms of each.

A pseudonym is valid wherever its name is valid. The pseudonym of a label key is a qualified name without a known
meaning. The pseudonym of a resource implies the same units as the resource. The pseudonym of a zone keeps the number at
the end of the name. Addresses and images are replaced by unreachable ones.
"""

from __future__ import annotations

from hetsched.adapters.objects.fields import is_label_value, is_qualified_name
from hetsched.contracts.units import is_extended

from . import well_known
from .pseudonyms import Realm


def _may_be_key(key: str, pseudonym: str) -> bool:
    means_something = well_known.is_known_key(pseudonym) or pseudonym.startswith(well_known.PREFIXES)
    return is_qualified_name(pseudonym) and not means_something


def _as_resource(resource: str, pseudonym: str) -> str:
    """Format a resource's pseudonym so that it keeps the units; extended resources are counted in whole units."""
    if "/" not in resource or "/" in pseudonym:
        return pseudonym
    return f"{pseudonym}.example.com/device" if is_extended(resource) else f"kubernetes.io/{pseudonym}"


def _may_be_resource(resource: str, pseudonym: str) -> bool:
    odd = well_known.is_known_resource(pseudonym) or pseudonym.startswith("hugepages-")
    return is_qualified_name(pseudonym) and not odd and is_extended(pseudonym) == is_extended(resource)


def _as_stem(stem: str, pseudonym: str) -> str:
    return f"{pseudonym}-"  # followed by the number of the zone


NODE, POD, GANG = Realm("node-"), Realm("pod-"), Realm("group-")
# Pods are ordered by `namespace/name`, and `-` sorts before `/`.
NAMESPACE = Realm("ns-", order=lambda name: f"{name}/")
KEY = Realm("key-", accepts=_may_be_key)
VALUE = Realm("alias-", accepts=lambda _, pseudonym: is_label_value(pseudonym))
RESOURCE = Realm("resource-", accepts=_may_be_resource, write=_as_resource)
ZONE_STEM = Realm("zone-", write=_as_stem)
OWNER, KIND, UID, CARD = Realm("owner-"), Realm("Kind"), Realm("uid-"), Realm("card-")
IMAGE, CONTAINER, GATE = Realm("example.invalid/image-"), Realm("container-"), Realm("gate-")
SCHEDULER, ADDRESS, VENDOR = Realm("scheduler-"), Realm("2001:db8::"), Realm("vendor-")
CLAIM, VOLUME, CLASS, HANDLE = Realm("claim-"), Realm("volume-"), Realm("class-"), Realm("handle-")
DRIVER, POOL, DEVICE, DEVICE_CLASS = Realm("driver-"), Realm("pool-"), Realm("device-"), Realm("device-class-")
REQUEST, DEVICE_CLAIM, SELECTOR = Realm("request-"), Realm("device-claim-"), Realm("selector")
ATTRIBUTE, ATTRIBUTE_TEXT, ATTRIBUTE_NUMBER = Realm("attribute"), Realm("text-"), Realm("1")
PRIORITY, RUNTIME, QUOTA, BUDGET = Realm("priority-"), Realm("runtime-"), Realm("quota-"), Realm("budget-")
TOPOLOGY = Realm("topology-")
